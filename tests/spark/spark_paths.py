"""Where Spark's Python workers find this package and the folds of these tests."""

import os
from pathlib import Path

import tidegate

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(Path(tidegate.__file__).parents[1]), str(HERE)])
