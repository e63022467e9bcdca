"""A seccomp filter as strict as Docker's default on what matters to a sandbox, from podman's own.

Docker's profile without extra capabilities: no new namespaces (clone with any of their flags fails with
EPERM, clone3 with ENOSYS so that libraries fall back to clone), no mounts.  podman's default differs from it
just there.  Prints the profile."""

import json

PODMAN = "/usr/share/containers/seccomp.json"
NAMESPACES = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
REFUSED = {"unshare", "setns", "mount", "umount", "umount2", "pivot_root", "fsopen", "fsmount", "fsconfig", "fspick",
           "move_mount", "open_tree", "mount_setattr", "bpf", "perf_event_open", "quotactl", "sethostname",
           "setdomainname", "lookup_dcookie"}


def main():
    with open(PODMAN) as f:
        profile = json.load(f)
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in REFUSED | {"clone", "clone3"}]
    profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
    profile["syscalls"] += [
        {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
         "args": [{"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
        {"names": sorted(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
    ]
    print(json.dumps(profile))


if __name__ == "__main__":
    main()
