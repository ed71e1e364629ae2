"""Real trainers: what each rank saw, against what torch's own loader gives there. Run by `make test-integrations`."""
