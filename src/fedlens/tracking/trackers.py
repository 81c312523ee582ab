"""Send a run's numbers to TensorBoard, Weights & Biases or MLflow: off unless asked for, imported only then."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from fedlens.registry import Part, Registry

TRACKERS: Registry[type[Tracker]] = Registry("tracker")

Row: TypeAlias = Mapping[str, Any]  # what is known of a round: numbers by name, such as 'test/accuracy'


class Listener(Protocol):
    """Hears of every round and of a run's end."""

    def round(self, row: Row) -> None: ...

    def end(self, summary: Mapping[str, Any]) -> None: ...


class Tracker(Part):
    """Where to send numbers, as it stands in a recipe; `open` begins a run there, anew for each session of a run."""

    package: ClassVar[str]  # that it needs
    module: ClassVar[str]  # of that package

    def check(self) -> None:
        """Refuse a tracker whose package is not installed."""
        self._imported()

    def _imported(self) -> Any:
        try:
            return importlib.import_module(self.module)
        except ImportError as error:
            message = f"trackers: '{self.package}' is not installed; install it with: pip install 'fedlens[tracking]'"
            raise ImportError(message) from error

    def open(self, name: str, folder: Path, recipe: Mapping[str, Any]) -> Listener:
        raise NotImplementedError


@TRACKERS.register("tensorboard")
class TensorBoard(Tracker):
    """Event files in RUN/tensorboard: `tensorboard --logdir RUN`."""

    package, module = "tensorboard", "torch.utils.tensorboard"

    def open(self, name: str, folder: Path, recipe: Mapping[str, Any]) -> Listener:
        return _TensorBoard(self._imported().SummaryWriter(str(folder / "tensorboard")))


@dataclass(frozen=True)
class _TensorBoard:
    writer: Any

    def round(self, row: Row) -> None:
        for name, value in numbers(row):
            self.writer.add_scalar(name, value, row["round"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.writer.close()


@TRACKERS.register("wandb")
class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; with `mode: offline` it stays in the run's folder."""

    package, module = "wandb", "wandb"
    project: str = "fedlens"
    mode: str = "online"

    def open(self, name: str, folder: Path, recipe: Mapping[str, Any]) -> Listener:
        run = self._imported().init(project=self.project, name=name, mode=self.mode, dir=str(folder), config=dict(recipe))
        return _WeightsAndBiases(run)


@dataclass(frozen=True)
class _WeightsAndBiases:
    run: Any

    def round(self, row: Row) -> None:
        self.run.log(dict(numbers(row)), step=row["round"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.run.finish()


@TRACKERS.register("mlflow")
class MLflow(Tracker):
    """A run of MLflow; `uri` says which server or folder, otherwise MLflow's own setting does."""

    package, module = "mlflow", "mlflow"
    experiment: str = "fedlens"
    uri: str | None = None

    def open(self, name: str, folder: Path, recipe: Mapping[str, Any]) -> Listener:
        client = self._imported().MlflowClient(self.uri)
        known = client.get_experiment_by_name(self.experiment)
        experiment = known.experiment_id if known else client.create_experiment(self.experiment)
        run = client.create_run(experiment, run_name=name).info.run_id
        for key, value in recipe.items():
            client.log_param(run, key, str(value)[:500])
        return _MLflow(client, run)


@dataclass(frozen=True)
class _MLflow:
    client: Any
    run: str

    def round(self, row: Row) -> None:
        for name, value in numbers(row):
            self.client.log_metric(self.run, name.replace(" ", "_"), value, step=row["round"])

    def end(self, summary: Mapping[str, Any]) -> None:
        self.client.set_terminated(self.run)


def numbers(row: Row) -> Iterator[tuple[str, float]]:
    """The numbers of a round by name, without what is text or a table."""
    return ((name, float(value)) for name, value in row.items() if isinstance(value, int | float) and name != "round")
