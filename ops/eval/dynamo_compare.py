"""The hit rates of `ragstone simulate --nodes` and of Dynamo's replay, side by side. Called by ops/eval/dynamo."""

import argparse
import json
import subprocess
import sys
import tempfile

from dynamo.replay import run_trace_replay

BLOCK_TOKENS = 512
KV_BYTES = 1024
ROUTING = {"round_robin": "round-robin", "kv_router": "kv-aware"}

# What a mock worker of Dynamo takes, about: 27 ms for a pass, 73 microseconds a token of it. Hit rates depend on it only as far as prompts that are
# computed at the same time cannot reuse each other.
PROFILE = {
    "source": "as Dynamo's mock workers, about",
    "kv_bytes_per_token": KV_BYTES,
    "layers": 32,
    "place_us_per_byte": 0.0,
    "cached_tokens": [0],
    "new_tokens": [1, 512],
    "time_us": [[8000, 45000]],
}


def dynamo(trace: str, workers: int, mode: str, blocks: int, speed: float) -> float:
    engine = {"engine": {"num_gpu_blocks": blocks, "block_size": BLOCK_TOKENS}}
    report = run_trace_replay(
        trace,
        num_workers=workers,
        router_mode=mode,
        trace_block_size=BLOCK_TOKENS,
        arrival_speedup_ratio=speed,
        extra_engine_args=engine,
    )
    return report.summary["prefix_cache_reused_ratio"]


def ours(program: str, trace: str, workers: int, mode: str, blocks: int, speed: float, profile: str) -> dict:
    size = blocks * BLOCK_TOKENS * KV_BYTES
    command = [program, "simulate", trace, "--json", "--nodes", str(workers), "--routing", ROUTING[mode]]
    command += ["--policy", "lru", "--profile", profile, "--speed", str(speed), "--no-bucket", "--disk-size", "0"]
    command += ["--host-size", str(size), "--answers", "256", "--waiting", "1000000"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["rows"][0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--ragstone", required=True)
    parser.add_argument("--workers", default="1,4,16")
    parser.add_argument("--blocks", type=int, default=2048)
    parser.add_argument("--within", type=float, default=0.02)
    args = parser.parse_args()
    worst = 0.0
    with tempfile.NamedTemporaryFile("w", suffix=".json") as profile:
        json.dump(PROFILE, profile)
        profile.flush()
        print(f"{'workers':>7}  {'routing':<12} {'dynamo':>7} {'ragstone':>8} {'differ':>7}", flush=True)
        for workers in (int(count) for count in args.workers.split(",")):
            # The trace is one that four workers answer: as many times as fast for as many more.
            speed = max(workers / 4, 0.25)
            for mode in ROUTING:
                theirs = dynamo(args.trace, workers, mode, args.blocks, speed)
                row = ours(args.ragstone, args.trace, workers, mode, args.blocks, speed, profile.name)
                hit = row["hit"]["host"] + row["hit"]["device"]
                worst = max(worst, abs(theirs - hit))
                print(f"{workers:>7}  {ROUTING[mode]:<12} {theirs:>7.4f} {hit:>8.4f} {hit - theirs:>+7.4f}", flush=True)
    print(f"they differ by {worst:.4f} at most; {args.within} may be")
    return 0 if worst <= args.within else 1


if __name__ == "__main__":
    sys.exit(main())
