"""Retargeting: recorded keypoints carried over to a robot, by eq. 8 of Bohez et al. 2022 (arXiv
2203.17138).

retarget(clip, robot)            one clip -> ReferenceMotion
retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
estimate_offsets(clips, robot)   the marker offsets alone
clean(motion_set, robot)         a training set: filters, chunks, mirrors, split, weights -> Cleaned
QualityMeter(robot)              the quality figures of any motion of the robot

Where things are, in the order in which a recording passes through (each module says its part at its
top):

    options                     the settings of all functions below
    skeletons, markers          keypoints -> the robot's markers; marker offsets and their symmetry
    prepared_robot, kinematics  a robot made ready: markers, contact points, hull; its tree, where
    bodies are at poses targets, ground             markers on the floor, at the robot's size and
    rate; stances, feet locked in them offsets                     eq. 8's offsets, jointly over the
    clips of one body inverse_kinematics          eq. 8's poses, every frame for itself;
    levenberg_marquardt solves all frames at once pose_sequence               what eq. 8 does not
    know: smooth roots, speed limits; foot_locking: feet that stand trajectory_optimization     the
    whole motion as one problem over time, for flat feet pipeline                    the steps
    above, one after the other people, joint_map, legs     the other way, people to OP3 by joint
    angles; how well legs are oriented imported                    motions that are a robot's
    already collection, doubts          many recordings, some of which do not fit; what speaks
    against a motion quality, self_collision     figures of any motion cleaning, mirror, resampling,
    tempo, split, weights, gaits     motions -> a training set
"""

from retarget.cleaning import Cleaned, CleanOptions, Dropped, clean
from retarget.options import Options
from retarget.pipeline import estimate_offsets, retarget, retarget_many
from retarget.quality import QualityMeter

__all__ = [
    "CleanOptions",
    "Cleaned",
    "Dropped",
    "Options",
    "QualityMeter",
    "clean",
    "estimate_offsets",
    "retarget",
    "retarget_many",
]
