"""What the ranks of trl_ranks.py share by being forks: all that takes long to import. DeepSpeed is found by those that ask for it."""

from testing import foreign

foreign.add_packages()

import datasets  # noqa: E402, F401
import lorry.trl  # noqa: E402, F401
