"""Things that several tests share: peers that misbehave, tiny models, fake programs."""
