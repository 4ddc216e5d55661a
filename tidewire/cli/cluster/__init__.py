"""`tidewire cluster`: run several brokers of one data folder on this machine, and watch and steer any cluster."""
