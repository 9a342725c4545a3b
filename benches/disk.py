"""What the scripts here need of a disk: an empty page cache, its read-ahead, and a file behind a loop device.

A memory limit counts a cached page for the group that read it first, so a model that another
process has read costs the next one nothing: `evict` it before every run under a limit.
"""

import os
import pathlib
import subprocess
import sys

# Whole pages, so that a loop device of 512-byte or 4096-byte sectors shows all of the file.
SECTOR_BYTES = 4096


def files_of(path):
    """The file itself, or the files of a folder; links followed."""
    path = pathlib.Path(path).resolve()
    return [path] if not path.is_dir() else sorted(f for f in path.iterdir() if f.is_file())


def evict(*paths):
    """Drops the clean pages of files, folders of files or block devices from the page cache."""
    for path in paths:
        for file in files_of(path):
            handle = os.open(file, os.O_RDONLY)
            try:
                # Pages that wait to be written stay: a model made a moment ago has them.
                if file.is_file():
                    os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def _queue(path):
    """The request queue's folder of the disk that holds this file, or None."""
    device = os.stat(path).st_dev
    block = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return None
    # A partition has no queue of its own: the disk is the folder above.
    return next((f / "queue" for f in (block.resolve(), block.resolve().parent) if (f / "queue").exists()), None)


def read_ahead_kb(path):
    """The read-ahead of the disk that holds this file; None where the kernel does not report it."""
    queue = _queue(path)
    return int((queue / "read_ahead_kb").read_text()) if queue else None


class LoopDevice:
    """A file as a read-only block device with direct I/O and a read-ahead of its own. Needs root.

    The page cache then holds the device's pages and not the file's, read in pieces of that size,
    and the setting of the real disk stays as it is. Gone again when the context ends.
    """

    def __init__(self, path, read_ahead_kb):
        self.file, self.read_ahead_kb, self.path = pathlib.Path(path).resolve(), read_ahead_kb, None

    def __enter__(self):
        self._pad()
        command = ["losetup", "--find", "--show", "--read-only", "--direct-io=on", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: no loop device for {self.file}: {done.stderr.strip()}\nhint: this needs root and losetup")
        self.path = pathlib.Path(done.stdout.strip())
        try:
            block = pathlib.Path("/sys/block") / self.path.name
            (block / "queue" / "read_ahead_kb").write_text(str(self.read_ahead_kb))
            # Without direct I/O the file's pages would be cached a second time, with the disk's read-ahead.
            if (block / "loop" / "dio").read_text().strip() != "1":
                sys.exit(f"error: {self.path} does not read {self.file} directly: its file system may not allow it")
            evict(self.path)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.path is not None:
            # An interrupt must not stop this.
            subprocess.run(["losetup", "--detach", str(self.path)], start_new_session=True, check=False)
            self.path = None

    def _pad(self):
        """A loop device hides a last half sector, and llama.cpp then refuses the model. Zeros after
        the last tensor change nothing for any reader."""
        length = self.file.stat().st_size
        missing = -length % SECTOR_BYTES
        if missing:
            print(f"padding {self.file.name} by {missing} zero bytes to whole sectors", file=sys.stderr)
            os.truncate(self.file, length + missing)
