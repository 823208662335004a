"""The doctor: what on this machine would stop or spoil a run, each with the line that mends it. Nothing here starts or changes anything."""
