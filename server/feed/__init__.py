"""What an engine does, told to those who watch it: one poller a front end and engine, however many look."""
