"""Retargeting: recorded keypoints carried over to a robot, by eq. 8 of Bohez et al. 2022 (arXiv 2203.17138).

retarget(clip, robot)            one clip -> ReferenceMotion
retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
estimate_offsets(clips, robot)   the marker offsets alone
clean(motion_set, robot)         a training set: filters, chunks, mirrors, split, weights -> Cleaned
Judge(robot)                     the quality figures of any motion of the robot
"""

from retarget.cleaning import Cleaned, Cleaner, CleanOptions, Dropped, clean
from retarget.options import Options
from retarget.pipeline import estimate_offsets, retarget, retarget_many
from retarget.quality import Judge

__all__ = [
    "CleanOptions",
    "Cleaned",
    "Cleaner",
    "Dropped",
    "Judge",
    "Options",
    "clean",
    "estimate_offsets",
    "retarget",
    "retarget_many",
]
