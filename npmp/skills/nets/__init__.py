"""Networks. Stateless: recurrent state goes in and comes out, nothing is kept between calls."""

from npmp.skills.nets.skill_nets import Decoder, DecoderState, Encoder, JointDecoder, NetConfig

__all__ = ["Decoder", "DecoderState", "Encoder", "JointDecoder", "NetConfig"]
