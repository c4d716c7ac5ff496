"""What a user of py-arrakis does, by an unmodified version of it: `client.py URL VERSION`.

Each step asserts what that API's documentation and its cookbook promise. Versions before 1.2.2
have no `blocking`, those before 1.1.2 say `delete_all`.
"""

import sys

import requests
from py_arrakis import SandboxManager

url, version = sys.argv[1:]
release = tuple(int(number) for number in version.split("."))
manager = SandboxManager(url)
name = "client-" + version


def status(sandbox):
    return sandbox.info()["status"]


def refused(code, call):
    try:
        call()
    except requests.HTTPError as error:
        assert error.response.status_code == code, error.response.text
        assert error.response.json()["error"]["message"], error.response.text
    else:
        raise AssertionError(f"this should be refused with {code}")


# Start, list, info.
sandbox = manager.start_sandbox(name)
assert [one.name for one in manager.list_all()] == [name]
info = sandbox.info()
assert (info["name"], info["status"]) == (name, "RUNNING"), info
assert info["ip"].endswith("/24") and info["tap_device_name"] == "", info
assert {forward["guest_port"] for forward in info["port_forwards"]} >= {
    str(port) for port in range(5736, 5741)
}, info
refused(409, lambda: manager.start_sandbox(name))
refused(404, lambda: manager.restore(name, "no-such-snapshot"))

# Commands.
ran = sandbox.run_cmd("echo out; echo err >&2; pwd; id -un; echo $PATH")
assert ran == {
    "output": "out\nerr\n/tmp/server_files\nroot\n/usr/local/bin:/usr/bin:/bin\n",
    "error": "",
}, ran
ran = sandbox.run_cmd("echo said; exit 3")
assert ran == {"output": "said\n", "error": "exit status 3"}, ran
ran = sandbox.run_cmd("(echo sub) | cat; [[ $((1+1)) = 2 ]] && echo 'it'\"'\"'s'; ;")
assert "syntax error" in ran["output"] and ran["error"] == "exit status 2", ran
ran = sandbox.run_cmd("(echo subshell); f() { echo function; }; f")
assert ran["output"] == "subshell\nfunction\n", ran
if release >= (1, 2, 2):
    began = sandbox.run_cmd("mkfifo begun; echo ready > begun; sleep 1000", blocking=False)
    assert "started in background" in began["output"] and began["error"] == "", began
    ran = sandbox.run_cmd("until test -p begun; do sleep 0.01; done; cat begun")
    assert ran["output"] == "ready\n", ran

# Files.
sandbox.upload_files(
    [
        {"path": "plain.txt", "content": "one\n"},
        {"path": "made/for/it.txt", "content": "zwei äöü\n"},
        {"path": "/etc/from-outside", "content": ""},
    ]
)
assert sandbox.run_cmd("cat plain.txt made/for/it.txt")["output"] == "one\nzwei äöü\n"
files = sandbox.download_files(["plain.txt", "/etc/from-outside", "/etc/hostname", "missing"])
by_path = {file["path"]: file for file in files}
assert by_path["plain.txt"]["content"] == "one\n" and by_path["plain.txt"]["error"] == "", files
assert by_path["/etc/from-outside"]["error"] == "", files
assert by_path["/etc/hostname"]["content"].strip(), files
assert by_path["missing"]["content"] == "" and "Failed to read file" in by_path["missing"]["error"]

# Snapshot; another one from it while the first runs; memory and disk go on in both.
sandbox.run_cmd("echo kept > state; echo in-memory > /dev/shm/state")
kept = sandbox.snapshot("kept-" + version)
assert kept == "kept-" + version
refused(409, lambda: sandbox.snapshot(kept))
by_default = sandbox.snapshot()
assert by_default.startswith("snapshot-" + name), by_default
sandbox.run_cmd("echo later > state")
other = manager.restore("other-" + version, kept)
read = "cat state /dev/shm/state; hostname"
of_other = other.run_cmd(read)["output"].splitlines()
assert of_other[:2] == ["kept", "in-memory"], of_other
assert sandbox.run_cmd("cat state")["output"] == "later\n"
assert of_other[2] != sandbox.run_cmd("hostname")["output"].strip()
# A restored one can be kept again.
again = other.snapshot("again-" + version)
ports = lambda one: {forward["host_port"] for forward in one.info()["port_forwards"]}
assert not ports(other) & ports(sandbox)

# Under the same name: back in place, under the same ports.
before = ports(sandbox)
back = manager.restore(name, kept)
assert back.run_cmd("cat state")["output"] == "kept\n"
assert ports(back) == before

# Paused and resumed, stopped and started on its disk.
sandbox.update_state("paused")
assert status(sandbox) == "PAUSED"
prefix = "/v1" if release >= (2, 0, 0) else ""
requests.patch(f"{url}{prefix}/vms/{name}", json={"status": "resume"}).raise_for_status()
assert status(sandbox) == "RUNNING"
assert sandbox.run_cmd("cat /dev/shm/state")["output"] == "in-memory\n"
sandbox.update_state("paused")
# The client's own words for it.
assert status(manager.start_sandbox(name)) == "RUNNING"
assert sandbox.run_cmd("cat /dev/shm/state")["output"] == "in-memory\n"
sandbox.update_state("stopped")
assert status(sandbox) == "STOPPED"
started = manager.start_sandbox(name)
assert status(started) == "RUNNING"
assert started.run_cmd("cat state; ls /dev/shm")["output"] == "kept\n"

# Destroyed, one and all.
other.destroy()
refused(404, other.info)
with manager.start_sandbox("scope-" + version) as scoped:
    assert scoped.run_cmd("echo in")["output"] == "in\n"
refused(404, scoped.info)
destroy_all = getattr(manager, "destroy_all", None) or manager.delete_all
destroy_all()
assert manager.list_all() == []
print("all of it works with", version)
