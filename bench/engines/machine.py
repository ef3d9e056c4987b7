"""What the figures were measured with."""

import platform
import subprocess


def driver():
    """The version of the driver, or that of CUDA that it supports."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=15)
        return done.stdout.split("\n")[0].strip()
    except (OSError, subprocess.SubprocessError):
        return f"CUDA {torch._C._cuda_getDriverVersion()}"


def measure(report, options):
    facts = {"python": platform.python_version(), "device": options.device}
    for name in ("kvarena", "torch", "transformers"):
        try:
            facts[name] = __import__(name).__version__
        except ModuleNotFoundError:
            facts[name] = "not installed"
    if options.device != "cpu" and facts["torch"] != "not installed":
        import torch

        if not torch.cuda.is_available():
            report.row("card", value="none", result="failed", note="torch finds no GPU")
            return
        card = torch.cuda.get_device_properties(options.device)
        facts["card"] = f"{card.name}, {card.multi_processor_count} multiprocessors"
        facts["memory"] = f"{card.total_memory / 2**30:.0f} GiB"
        facts["driver"], facts["cuda"] = driver(), torch.version.cuda
    for name, value in facts.items():
        report.row(name, note=value)
