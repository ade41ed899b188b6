"""The rank of this process, and the number of ranks: among those processes that need data of their own."""

import gc
import re

from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from iofast.errors import OptionError, shown
from iofast.machine import launcher_rank

# Names of mesh dimensions along which ranks need different data, as Lightning, Accelerate, torchtitan and others have
# them. "world" is all ranks; its parts are dimensions too.
_DATA_PARALLEL = re.compile(r"dp|ddp|fsdp|hsdp|data|batch|replicate|shard|world")


def detected_rank() -> tuple[int, int]:
    """Rank and world size: from torch.distributed, the launcher's environment, or (0, 1)."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return launcher_rank() or (0, 1)


def rank_in(group: object) -> tuple[int, int]:
    """Rank and size of a process group, or of a mesh's data-parallel dimensions, the first one outermost.

    Raises `OptionError` for anything else, if this process is no member, and if no dimension is data-parallel.
    """
    members = list(_data_parallel(group)) if isinstance(group, DeviceMesh) else [group]
    rank, size = 0, 1
    for each in members:
        if not isinstance(each, distributed.ProcessGroup) or distributed.get_rank(each) < 0:
            raise OptionError(
                f"group must be a process group or a device mesh of torch with this process, found {shown(group)}"
            )
        rank, size = rank * each.size() + distributed.get_rank(each), size * each.size()
    return rank, size


def _data_parallel(mesh: DeviceMesh) -> list[distributed.ProcessGroup | None]:
    """The groups of the data-parallel dimensions of a mesh, of its only one whatever its name; None if not a member."""
    names = mesh.mesh_dim_names or ("",) * mesh.ndim
    wanted = [dim for dim, name in enumerate(names) if mesh.ndim == 1 or _DATA_PARALLEL.match(name)]
    if not wanted:
        raise OptionError(
            f'group must be data-parallel dimensions of a mesh, as mesh["dp"], or a process group, found {_shown(mesh)}'
        )
    return [mesh.get_group(dim) for dim in wanted] if mesh.get_coordinate() is not None else [None]


def check_meshes() -> None:
    """Raise `OptionError` if a device mesh of this process has ranks that need the same data.

    torch keeps no list of its meshes, so the garbage collector looks for them: 0.05 s for 300,000 objects.
    """
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return
    for mesh in gc.get_referrers(DeviceMesh):
        if type(mesh) is not DeviceMesh:
            continue
        names = mesh.mesh_dim_names or ("",) * mesh.ndim
        wide = [name for name, size in zip(names, mesh.shape, strict=True) if size > 1]
        if wide != [""] and not all(map(_DATA_PARALLEL.match, wide)):  # FSDP makes one dimension without a name
            raise OptionError(
                f"torch has {_shown(mesh)}, whose ranks do not all need data of their own: give group= its "
                'data-parallel part, as mesh["dp"], or torch.distributed.group.WORLD if they do'
            )


def _shown(mesh: DeviceMesh) -> str:
    names = "without names" if mesh.mesh_dim_names is None else f"({', '.join(mesh.mesh_dim_names)})"
    return f"a device mesh of {' x '.join(map(str, mesh.shape))} ranks {names}"
