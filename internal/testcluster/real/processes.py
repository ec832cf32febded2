"""Simulated vLLM workers over real ZMQ, a relay each, one NATS server, two proxies: all
processes of their own. A conversation that alternates between the proxies must stay on
its worker, and both proxies must know every worker completely."""
import random
import sys
import tempfile

import openai

import rig

WORKERS, CONVERSATIONS, TURNS, BLOCK = 3, 12, 5, 64


def main(warmroute, nats_server):
    with rig.Rig() as r:
        nats = rig.free_port()
        procs = [r.start("nats", nats_server, "-a", "127.0.0.1", "-p", str(nats))]
        url = f"nats://127.0.0.1:{nats}"
        workers, state = [], tempfile.mkdtemp()
        for i in range(WORKERS):
            http, events, replay = rig.free_port(), rig.free_port(), rig.free_port()
            procs.append(r.start(f"worker{i}", warmroute, "worker", "--listen", f"127.0.0.1:{http}", "--events", f"tcp://127.0.0.1:{events}",
                                 "--replay", f"tcp://127.0.0.1:{replay}", "--speed-up", "20", "--seed", str(i + 1)))
            procs.append(r.start(f"relay{i}", warmroute, "relay", "--nats", url, "--id", f"w{i}", "--url", f"http://127.0.0.1:{http}",
                                 "--events", f"tcp://127.0.0.1:{events}", "--replay", f"tcp://127.0.0.1:{replay}", "--state-dir", state))
            workers.append(f"--worker=http://127.0.0.1:{http},id=w{i}")
        clients, admins = [], []
        for i in range(2):
            port, admin = rig.free_port(), rig.free_port()
            procs.append(r.start(f"proxy{i}", warmroute, "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--nats", url, *workers))
            rig.wait_for("proxy readiness", lambda: rig.get(f"http://127.0.0.1:{port}/readyz"), 30, procs)
            clients.append(openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60))
            admins.append(admin)
        for admin in admins:
            rig.wait_for("complete coverage of every worker", lambda: rig.get(f"http://127.0.0.1:{admin}/debug/workers").count(b'"complete"') >= WORKERS, 30, procs)
        stayed = asked = cached = cachable = prompt = 0
        convs = [[{"role": "system", "content": f"Conversation {i}. " + "Answer briefly and name your sources. " * 60}] for i in range(CONVERSATIONS)]
        last = [None] * CONVERSATIONS
        for turn in range(TURNS):
            for i in random.Random(turn).sample(range(CONVERSATIONS), CONVERSATIONS):
                convs[i].append({"role": "user", "content": f"Question {turn} of conversation {i}: " + "and why is that so? " * 20})
                t = rig.chat(clients[(turn + i) % 2], "sim", convs[i], 64)
                convs[i].append({"role": "assistant", "content": t.text})
                if last[i] is not None:
                    asked, stayed = asked + 1, stayed + (last[i].worker == t.worker)
                    cached, prompt = cached + t.cached, prompt + t.prompt
                    # The last token of a reply is never computed; whole blocks are cached.
                    cachable += (last[i].prompt + last[i].output - 1) // BLOCK * BLOCK
                last[i] = t
        print(f"{CONVERSATIONS} conversations x {TURNS} turns, alternating between 2 proxies over {WORKERS} workers")
        print(f"turns >= 2 on the worker that has the prefix: {stayed}/{asked}")
        print(f"cached tokens of turns >= 2: {cached} of {cachable} that an earlier turn left, {prompt} in all")
        share = {w: sum(t.worker == w for t in last) for w in sorted({t.worker for t in last})}
        print(f"conversations per worker: {share}")
        if stayed < 0.95 * asked or cached < 0.95 * cachable or len(share) < 2:
            sys.exit("conversations must keep their worker and cache, and the fleet must share the load")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
