"""Machine checks of `hyrt doctor`: hardware and system limits, installed software, and the settings of a run.

The packages under test are imported in an isolated worker process only; `children` holds the code that runs
there.
"""
