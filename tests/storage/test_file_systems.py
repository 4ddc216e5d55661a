from pathlib import Path

import pytest

from storage.file_systems import NETWORK, NetworkFileSystem, mount_of, mount_table, parse, require_local

SERVER = """\
1 1 0:2 / / rw - rootfs rootfs rw
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
22 21 0:21 / /proc rw,nosuid shared:12 - proc proc rw
30 21 8:2 / /srv rw,relatime shared:20 - xfs /dev/sdb1 rw,attr2
31 30 0:45 /export/data /srv/shared rw,relatime shared:21 - nfs4 files.example.org:/export/data rw,vers=4.2
32 31 8:3 / /srv/shared/local rw,relatime - ext4 /dev/sdc1 rw
33 21 0:46 / /mnt/team\\040drive rw,relatime - cifs //nas/team\\040drive rw,vers=3.1.1
34 21 0:47 / /home/me/remote rw,nosuid,nodev - fuse.sshfs me@host:/data rw,user_id=1000
35 21 0:48 / /net rw,relatime - autofs /etc/auto.net rw
36 35 0:49 / /net/nas rw,relatime - nfs nas:/volume1 rw,vers=3
"""
CONTAINER = """\
612 580 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
613 612 0:55 / /proc rw,nosuid - proc proc rw
620 612 8:1 /var/lib/docker/volumes/data/_data /data rw,relatime master:1 - ext4 /dev/sda1 rw
621 612 0:60 / /shared rw,relatime - nfs4 10.0.0.5:/ rw,vers=4.1
"""
HIDDEN = """\
21 1 8:1 / / rw - ext4 /dev/sda1 rw
40 21 0:50 / /data/remote rw - nfs4 host:/a rw
41 21 8:5 / /data rw - xfs /dev/sdd1 rw
42 21 8:6 / /over rw - ext4 /dev/sde1 rw
43 42 0:51 / /over rw - cifs //nas/over rw
"""


@pytest.mark.parametrize(
    ("table", "folder", "kind"),
    [
        (SERVER, "/", "ext4"),
        (SERVER, "/var/lib/tidewire", "ext4"),
        (SERVER, "/srv", "xfs"),
        (SERVER, "/srv/data", "xfs"),
        (SERVER, "/srv/shared", "nfs4"),
        (SERVER, "/srv/shared/a/b", "nfs4"),
        (SERVER, "/srv/sharedness", "xfs"),
        (SERVER, "/srv/shared/local/a", "ext4"),
        (SERVER, "/mnt/team drive/a", "cifs"),
        (SERVER, "/home/me/remote", "fuse.sshfs"),
        (SERVER, "/home/me", "ext4"),
        (SERVER, "/net/nas/a", "nfs"),
        (SERVER, "/net/other", "autofs"),
        (CONTAINER, "/work", "overlay"),
        (CONTAINER, "/data/tidewire", "ext4"),
        (CONTAINER, "/shared/tidewire", "nfs4"),
        pytest.param(HIDDEN, "/data/remote/a", "xfs", id="a mount hidden by a later one"),
        pytest.param(HIDDEN, "/over/a", "cifs", id="two mounts on one folder"),
    ],
)
def test_the_file_system_of_a_folder_is_found(table: str, folder: str, kind: str) -> None:
    """E20: by the kernel's mount table."""
    mount = mount_of(Path(folder), parse(table))
    assert mount is not None
    assert mount.kind == kind
    if kind in NETWORK:
        with pytest.raises(NetworkFileSystem):
            require_local([Path(folder)], table)
    else:
        require_local([Path(folder)], table)


def test_a_network_file_system_is_refused_by_name() -> None:
    """E20: the sentence names folder, server, kind and mount, and what to do."""
    with pytest.raises(NetworkFileSystem) as refused:
        require_local([Path("/srv/data"), Path("/srv/shared/data")], SERVER)
    assert str(refused.value) == (
        "The folder /srv/shared/data is on the network file system files.example.org:/export/data of kind nfs4, "
        "mounted at /srv/shared. There a broker can miss that another one has taken over, and acknowledged messages "
        "get lost. Choose a --data-dir on a disk of this machine"
    )
    with pytest.raises(NetworkFileSystem, match=r"//nas/team drive of kind cifs, mounted at /mnt/team drive\."):
        require_local([Path("/mnt/team drive")], SERVER)


def test_a_link_leads_to_the_file_system(tmp_path: Path) -> None:
    """E20: also for a folder that does not exist yet."""
    table = f"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 21 0:50 / {tmp_path}/remote rw - nfs4 host:/a rw\n"
    (tmp_path / "remote").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "remote")
    require_local([tmp_path, tmp_path / "absent" / "remote"], table)
    for folder in ("remote", "link", "link/absent/folder", "absent/../link"):
        with pytest.raises(NetworkFileSystem):
            require_local([tmp_path / folder], table)


@pytest.mark.parametrize("table", ["", "\n", "21 1 8:1 / /\n", "this is not a mount table - at all\n"])
def test_a_table_that_says_nothing_refuses_nothing(table: str) -> None:
    """E11: a kernel without the table, or with another form of it."""
    require_local([Path("/srv/shared")], table)


def test_this_machines_table_is_understood(tmp_path: Path) -> None:
    mounts = parse(mount_table())
    found = mount_of(Path("/proc/self"), mounts)
    assert found is not None
    assert found.kind == "proc"
    assert mount_of(tmp_path.resolve(), mounts) is not None
    require_local([tmp_path], mount_table())
