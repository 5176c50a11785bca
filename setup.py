"""All but one thing about the package is in pyproject.toml: a wheel carries as data what lies
elsewhere in the repository. Recordings are in measured/, skeletons, specifications and trials in
assignments/, scripts in examples/, tables of published runs in tests/, where whoever writes them
looks for them; a learner may have the wheel alone."""

from pathlib import Path
from shutil import copy, copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class WithData(build_py):
    def run(self):
        super().run()
        for folder in ("measured", "assignments", "examples"):
            if not self.editable_mode and Path(folder).is_dir():
                target = Path(self.build_lib, "coursekit", "data", folder)
                copytree(folder, target, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)
        for table in () if self.editable_mode else Path("tests").glob("*/published_*.csv"):
            target = Path(self.build_lib, "coursekit", "data", table)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy(table, target)


setup(cmdclass={"build_py": WithData})
