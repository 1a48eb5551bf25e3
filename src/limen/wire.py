"""What travels between a limen that decides and whoever asks it: the messages of `/v1`. Pure."""
