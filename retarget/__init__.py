"""Retargeting: recorded keypoints carried over to a robot, by eq. 8 of Bohez et al. 2022 (arXiv 2203.17138).

retarget(clip, robot)            one clip -> ReferenceMotion
retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
estimate_offsets(clips, robot)   the marker offsets alone
"""

from retarget.pipeline import Options, estimate_offsets, retarget, retarget_many

__all__ = ["Options", "estimate_offsets", "retarget", "retarget_many"]
