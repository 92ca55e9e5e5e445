"""Retargeting: recorded keypoints carried over to a robot, by eq. 8 of Bohez et al. 2022 (arXiv
2203.17138).

    retarget(clip, robot)            one clip -> ReferenceMotion
    retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
    clean(motion_set, robot)         a training set: filters, chunks, mirrors, split, weights
    QualityMeter(robot)              the quality figures of any motion of the robot

The modules, in the order in which a recording passes through:

    sources, options                 recordings of a file or folder; the settings
    skeletons, markers               keypoints -> the robot's markers; their offsets and symmetry
    limbs, draft                     unknown skeletons: read by movement; by names, to be edited
    prepared_robot, kinematics       a robot made ready; where its bodies are at poses
    targets, ground                  markers on the floor, at the robot's size and rate; stances
    offsets, proportions             eq. 8's offsets, jointly over a body's clips; people have none
    inverse_kinematics               eq. 8's poses
    pose_sequence, foot_locking      what eq. 8 does not know: smooth roots, standing feet, speeds
    trajectory_optimization          the whole motion as one problem over time, for flat feet
    pipeline, collection             the steps above, for one clip and for many
    legs                             how well legs point where a person's do
    imported, recorded               motions that are a robot's already; keypoints beside a motion
    quality                          figures of any motion
    plausibility, overview           warnings; many motions at a glance
    cleaning, mirror, resampling, tempo, split, weights     motions -> a training set
"""

from retarget.cleaning import CleanOptions, clean
from retarget.options import Options
from retarget.pipeline import retarget, retarget_many
from retarget.quality import QualityMeter

__all__ = ["CleanOptions", "Options", "QualityMeter", "clean", "retarget", "retarget_many"]
