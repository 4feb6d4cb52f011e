"""What the tests on real engines share: the fleet, the questions they ask it, and its counters."""
