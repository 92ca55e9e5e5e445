"""Learning by backpropagation through a learned model of the simulator (SuperTrack, ControlVAE)."""
