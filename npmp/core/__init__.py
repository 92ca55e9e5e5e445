"""What every room uses: settings, files, checkpoints, geometry, devices."""
