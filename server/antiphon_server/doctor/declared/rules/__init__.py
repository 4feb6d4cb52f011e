"""What is checked of declared fleets. Those over engines are light, and asked by ``antiphon up``,
before it starts anything (``stack/validate.py``); those over routers read the router's settings."""
