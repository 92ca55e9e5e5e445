"""Retargeting: recorded keypoints as motions of a robot, by eq. 8 of Bohez et al. 2022 (arXiv
2203.17138).

    retarget(clip, robot)            one clip -> ReferenceMotion
    retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
    clean(motion_set, robot)         a training set: filters, chunks, mirrors, split, weights
    QualityMeter(robot)              the quality figures of any motion of the robot

The modules, in the order of the data flow:

    sources, options                 recordings of a file or folder; the settings
    subjects, skeletons              clips of one subject, and their skeleton: by file, names or
    limb_detection                   movement
    recording_checks                 warnings of misread recordings
    prepared_robot, kinematics       the robot's tree, markers and soles; forward kinematics
    markers, targets, ground         the robot's markers; the recording's, with floor and stances
    offsets, proportions             marker offsets of animals; people at a robot's proportions
    inverse_kinematics               the poses of eq. 8, frame by frame
    pose_sequence, foot_locking      smooth roots, standing feet, speed limits
    trajectory_optimization          all frames of a motion at once, for flat feet
    pipeline                         the steps above in order
    robot_motion_import              robot motions of other projects
    quality, leg_orientation         figures of any motion
    feasibility                      whether a robot can do a motion, by its dynamics
    motion_summary, inspection       tables of many motions; contents of files
    cleaning, mirror, resampling,    motions -> a training set
    time_scaling, split, weights
    dataset, export                  recordings -> dataset; dataset -> other formats
"""

from retarget.cleaning import CleanOptions, clean
from retarget.options import Options
from retarget.pipeline import retarget, retarget_many
from retarget.quality import QualityMeter

__all__ = ["CleanOptions", "Options", "QualityMeter", "clean", "retarget", "retarget_many"]
