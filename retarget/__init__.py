"""Retargeting: recorded keypoints carried over to a robot, by eq. 8 of Bohez et al. 2022 (arXiv 2203.17138).

retarget(clip, robot)            one clip -> ReferenceMotion
retarget_many(clips, robot)      many clips, offsets shared -> MotionSet
estimate_offsets(clips, robot)   the marker offsets alone
clean(motion_set, robot)         a training set: filters, chunks, mirrors, split, weights -> Cleaned
Judge(robot)                     the quality figures of any motion of the robot

Where things are, in the order in which a recording passes through (each module says its part at its top):

    options                     the settings of all functions below
    skeletons, markers          keypoints -> the robot's markers; marker offsets and their symmetry
    solver                      a robot made ready: tree, marker layout, contact points, hull
    targets, ground             markers on the floor, at the robot's size and rate; stances, planted feet
    offsets                     eq. 8's offsets, jointly over the clips of one body
    pose, batch                 eq. 8's poses: kinematics and the problem; its solver for all frames at once
    poses, stand, trajectory    what eq. 8 does not know: smooth roots, feet that stand, speed limits; all frames
    together pipeline                    the steps above, one after the other
    people, joint_map, legs     the other way, people to OP3 by joint angles; how well legs are oriented
    imported                    motions that are a robot's already
    quality, self_collision     figures of any motion
    cleaning, mirror, resampling, tempo, split, weights, gaits     motions -> a training set
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
