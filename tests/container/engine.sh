# A container engine for tests/container/run, whatever the machine has.  Sourced by bash.
#
#   docker    a daemon that answers
#   podman    one that pulls and runs by itself
#   debian    neither: buildah, podman, crun and mmdebstrap from the distribution, as root, with a base image made
#             here from Debian packages instead of pulled, images in a folder of their own, no cgroups, overlay only where
#             it works: fine inside virtual machines and other containers
#
# engine_find sets $engine, or ends with a reason in $engine_missing.  The network is always the host's, so that
# a server in the container answers on 127.0.0.1.

base_image=docker.io/library/debian:bookworm-slim
engine='' engine_missing=''
engine_folder='' # of the third kind: everything is in there

engine_find() {
    if command -v docker >/dev/null && docker info >/dev/null 2>&1; then
        if docker image inspect "$base_image" >/dev/null 2>&1 || docker pull -q "$base_image" >/dev/null 2>&1; then
            engine=docker
            return 0
        fi
    fi
    if command -v podman >/dev/null && podman run --rm --network=host "$base_image" true >/dev/null 2>&1; then
        engine=podman
        return 0
    fi
    if [ "$(id -u)" != 0 ]; then
        engine_missing="no docker daemon and no podman that can pull $base_image; as root one could be put together"
        return 1
    fi
    command -v apt-get >/dev/null || { engine_missing="no docker, no podman, and no apt-get to install one"; return 1; }
    (packages_install buildah podman crun mmdebstrap debian-archive-keyring) ||
        { engine_missing="buildah, podman, crun and mmdebstrap could not be installed"; return 1; }
    # One mount namespace for all of it: layers mounted by one command are seen by the next, and none outlives the run.
    # In it the v2 part of a hybrid cgroup mount is hidden, which crun refuses.
    if [ -z "${FIRSTPASS_CONTAINER_NAMESPACE:-}" ]; then
        FIRSTPASS_CONTAINER_NAMESPACE=1 exec unshare -m "$PWD/tests/container/run"
    fi
    umount /sys/fs/cgroup/unified 2>/dev/null
    engine=debian
    engine_folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}" firstpass-container.XXXXXX)
    storage=(--root "$engine_folder/storage" --runroot "$engine_folder/run" --storage-driver "$(storage_driver)")
    debian_base || { engine_missing="a base image could not be made: is the Debian archive reachable?"; return 1; }
    if ! engine_run default trial "$base_image" true >"$engine_folder/trial" 2>&1; then
        engine_missing="podman can't run containers here: $(tail -n 1 "$engine_folder/trial")"
        return 1
    fi
}

# vfs copies whole trees and works anywhere; overlay doesn't work on top of another overlay.
storage_driver() {
    local d=$engine_folder/overlay
    mkdir -p "$d/lower" "$d/upper" "$d/work" "$d/merged"
    if mount -t overlay overlay -o "lowerdir=$d/lower,upperdir=$d/upper,workdir=$d/work" "$d/merged" 2>/dev/null; then
        umount "$d/merged"
        echo overlay
    else
        echo vfs
    fi
}

debian_base() {
    say "making a base image"
    mmdebstrap --quiet --variant=minbase bookworm "$engine_folder/base.tar" >&2 || return 1
    mkdir "$engine_folder/base"
    printf 'FROM scratch\nADD base.tar /\nCMD ["bash"]\n' >"$engine_folder/base/Dockerfile"
    mv "$engine_folder/base.tar" "$engine_folder/base/"
    buildah "${storage[@]}" bud -q --isolation chroot -t "$base_image" "$engine_folder/base" >&2 || return 1
    rm -r "$engine_folder/base"
}

podman_() {
    case $engine in
    docker) docker "$@" ;;
    podman) podman "$@" ;;
    debian) podman "${storage[@]}" "$@" ;;
    esac
}

engine_build() { # TAG [build flags]: docker/Dockerfile of this tree
    local tag=$1
    shift
    case $engine in
    docker) docker build -f docker/Dockerfile -t "$tag" "$@" . ;;
    podman) podman build --format docker --pull=never -f docker/Dockerfile -t "$tag" "$@" . ;;
    debian) buildah "${storage[@]}" bud --format docker --isolation chroot --pull-never --layers -f docker/Dockerfile -t "$tag" "$@" . ;;
    esac
}

# Runs in the foreground until the container ends.  PROFILE: default, or strict: a filter as strict as Docker's.
engine_run() { # PROFILE NAME [flags] IMAGE [command]
    local profile=$1 name=$2 flags=()
    shift 2
    case $engine in
    debian) flags+=(--cgroups=disabled --pull=never --ulimit nofile=4096:4096 --ulimit nproc=4096:4096) ;;
    podman) flags+=(--pull=never) ;;
    esac
    [ "$profile" = default ] || flags+=(--security-opt "seccomp=$profile_strict")
    podman_ run --rm --name "firstpass-test-$name" --network=host "${flags[@]}" "$@"
}

engine_clean() {
    case $engine in
    docker | podman)
        podman_ ps -aq --filter name=firstpass-test- | xargs -r "$engine" rm -f >/dev/null 2>&1
        podman_ images -q --filter 'reference=firstpass-test*' | sort -u | xargs -r "$engine" rmi -f >/dev/null 2>&1
        ;;
    debian) podman_ rm -fa >/dev/null 2>&1 ;;
    esac
    if [ -n "$engine_folder" ]; then
        # What was killed at the wrong moment left its layers mounted.
        awk -v d="$engine_folder/" 'index($2, d) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l
        rm -rf "$engine_folder"
    fi
    return 0
}
