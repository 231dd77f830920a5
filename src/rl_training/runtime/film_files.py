"""Video files that are written frame by frame, so that a long film takes no more memory than a short one."""

from __future__ import annotations

import contextlib
import functools
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rl_training.errors import ConfigError, MissingExtraError, described

Frame = NDArray[np.uint8]  # (height, width, colour)
FORMATS = (".gif", ".mp4")


class FilmFile(Protocol):
    """A video that is being written."""

    def add(self, frame: Frame) -> None: ...

    def close(self) -> None: ...


def open_film(path: Path, size: tuple[int, int], fps: float) -> FilmFile:
    """A file for frames of ``size`` (width, height), as a GIF or an MP4 by its name."""
    return (Mp4File if path.suffix.lower() == ".mp4" else GifFile)(path, size, fps)


class GifFile:
    """A GIF in which each frame consists of the rectangle that differs from the frame before, with its own palette."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float) -> None:
        self._file = path.open("wb")
        self._file.write(b"GIF89a" + struct.pack("<HHxxx", *size))  # no global palette
        self._file.write(b"!\xff\x0bNETSCAPE2.0\x03\x01\0\0\0")  # repeat for ever
        # GIF counts in hundredths of a second, and viewers slow down anything faster than 50 frames per second.
        self._duration = max(20, round(100 / fps) * 10)
        self._last: Frame | None = None
        self._waiting: tuple[Any, tuple[int, int], int] | None = None  # picture, corner, milliseconds until the next frame

    def add(self, frame: Frame) -> None:
        from PIL import Image

        if self._last is None:
            rows, columns = slice(None), slice(None)
            self._last = frame.copy(order="K")
        else:
            rows, columns = _changed(frame, self._last)
        changed = frame[rows, columns]
        if changed.size:
            self._last[rows, columns] = changed  # a copy: the environment may draw the next frame into the same array
            self._write_waiting()
            picture = Image.fromarray(np.ascontiguousarray(changed)).quantize(256, dither=Image.Dither.NONE)
            self._waiting = picture, (columns.start or 0, rows.start or 0), self._duration
        elif self._waiting is not None:
            picture, corner, duration = self._waiting
            self._waiting = picture, corner, duration + self._duration

    def _write_waiting(self) -> None:
        from PIL import GifImagePlugin

        if self._waiting is not None:
            picture, corner, duration = self._waiting
            keep = 1  # the picture stays under the next one
            data = GifImagePlugin.getdata(picture, corner, duration=duration, disposal=keep, include_color_table=True)
            self._file.writelines(data)

    def close(self) -> None:
        with self._file:
            self._write_waiting()
            self._file.write(b";")


def _changed(frame: Frame, last: Frame) -> tuple[slice, slice]:
    """The rows and columns of the smallest rectangle that holds every pixel that differs."""
    differs = frame != last
    by_column = differs.strides[0] < differs.strides[1]  # the memory order of pygame's frames; the other order is slow
    if by_column:
        differs = differs.transpose(1, 0, 2)
    outer, inner = _span(differs.any(axis=(1, 2))), _span(differs.any(axis=0).any(axis=1))
    return (inner, outer) if by_column else (outer, inner)


def _span(marked: NDArray[np.bool_]) -> slice:
    places = np.flatnonzero(marked)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)


#: The encoders of an MP4, best first, with their options. Every build of ffmpeg has the last; not all players have it.
ENCODERS = {
    "libx264": ["-preset", "ultrafast", "-crf", "25"],
    "libopenh264": ["-b:v", "1M"],
    "mpeg4": ["-q:v", "4"],
}


class Mp4File:
    """An MP4, encoded by a process of ffmpeg."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float) -> None:
        program, encoder = find_encoder()
        frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", str(fps), "-i", "pipe:0"]
        even = [] if size[0] % 2 == size[1] % 2 == 0 else ["-vf", f"scale={-(-size[0] // 2) * 2}:{-(-size[1] // 2) * 2}"]
        encoded = [*even, "-c:v", encoder, *ENCODERS[encoder], "-pix_fmt", "yuv420p", "-sws_flags", "neighbor"]  # the fastest
        self._program = program
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by ``close``
        self._process = subprocess.Popen(
            [program, "-y", "-v", "error", *frames, *encoded, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C is for us: the file is ended by ``close``
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def add(self, frame: Frame) -> None:
        try:
            self._pipe.write(np.ascontiguousarray(frame).data)
        except OSError:  # ffmpeg has ended; Windows has no error of its own for that
            self.close()
            raise

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        failed = self._process.wait() != 0
        if not self._said.closed:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").splitlines()
            self._said.close()
            if failed:
                reason = next((line for line in reversed(lines) if line.strip()), "it gave no reason")
                raise OSError(f"{self._program} failed: {reason}; write a .gif instead")


def find_encoder() -> tuple[str, str]:
    """The program ffmpeg, and the best of the encoders that it has."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise MissingExtraError("imageio-ffmpeg", "video") from error
    try:
        program = str(imageio_ffmpeg.get_ffmpeg_exe())
        return program, _encoder_of(program)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"an .mp4 needs ffmpeg, which cannot be started ({described(error)}); write a .gif, or install ffmpeg or name it "
            "in the environment variable IMAGEIO_FFMPEG_EXE"
        ) from error


@functools.cache
def _encoder_of(program: str) -> str:
    listed = subprocess.run([program, "-v", "error", "-encoders"], capture_output=True, text=True, check=False).stdout
    names = {line.split()[1] for line in listed.splitlines() if len(line.split()) > 1}
    for encoder in ENCODERS:
        if encoder in names:
            return encoder
    raise ConfigError(
        f"{program} has none of the encoders that an .mp4 can have here ({', '.join(ENCODERS)}); write a .gif, or name "
        "another ffmpeg in the environment variable IMAGEIO_FFMPEG_EXE"
    )
