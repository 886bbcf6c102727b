//! Which container and which pod a process is in: from the names of its cgroups (Docker,
//! containerd, CRI-O, Podman, Kubernetes), from its root file system (enroot, Pyxis), from its
//! environment (Apptainer, Singularity). `process` finds rank, job and user.

/// The container's id: the runtime's 64 hexadecimal digits, or the name that a runtime without a
/// cgroup of its own gives. `cgroups` and `mountinfo` are the texts of /proc/PID/cgroup and
/// /proc/PID/mountinfo, `environ` the block of /proc/PID/environ.
pub(crate) fn id(cgroups: &str, mountinfo: &str, environ: &[u8]) -> Option<String> {
    by_cgroup(cgroups).or_else(|| by_root(mountinfo)).or_else(|| by_environment(environ))
}

/// The 64 hexadecimal digits in a cgroup's name, in any hierarchy ("docker-ID.scope",
/// "cri-containerd-ID.scope", "crio-ID.scope", "libpod-ID.scope", "/docker/ID").
fn by_cgroup(cgroups: &str) -> Option<String> {
    cgroups.lines().flat_map(|line| line.rsplit('/')).find_map(|component| {
        let name = component.strip_suffix(".scope").unwrap_or(component);
        let id = name.rsplit(['-', ':']).next()?;
        (id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
    })
}

/// enroot unpacks an image below a directory "enroot" and makes it the root: the root's mount shows
/// which ("pyxis_4711.0"). Fields: id parent dev ROOT MOUNT-POINT …
fn by_root(mountinfo: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut words = line.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        let name = root.rsplit('/').next()?;
        let unpacked = root.split('/').any(|part| part.contains("enroot")) || name.starts_with("pyxis_");
        (point == "/" && unpacked && !name.is_empty()).then(|| name.to_owned())
    })
}

/// Apptainer and Singularity give the process the path of its image; the file's name is used as the
/// id.
fn by_environment(environ: &[u8]) -> Option<String> {
    const NAMES: [&[u8]; 2] = [b"APPTAINER_CONTAINER=", b"SINGULARITY_CONTAINER="];
    let image = environ.split(|&b| b == 0).find_map(|entry| NAMES.iter().find_map(|name| entry.strip_prefix(*name)))?;
    let file = image.rsplit(|&b| b == b'/').next()?;
    (!file.is_empty()).then(|| String::from_utf8_lossy(file).into_owned())
}

/// The Kubernetes pod's uid, with dashes: "kubepods-burstable-pod0123_….slice" (systemd) or
/// "/kubepods/burstable/pod0123-…".
pub(crate) fn pod_uid(cgroups: &str) -> Option<String> {
    cgroups.lines().filter(|line| line.contains("kubepods")).flat_map(|line| line.split('/')).find_map(|component| {
        let name = component.strip_suffix(".slice").unwrap_or(component);
        let uid = match name.strip_prefix("pod") {
            Some(uid) => uid,
            None => name.strip_prefix("kubepods")?.split_once("-pod")?.1,
        };
        let uid = uid.replace('_', "-");
        let is_uid = uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        is_uid.then_some(uid)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UID: &str = "3f2a1b4c-0d5e-4f60-8a7b-9c0d1e2f3a4b";

    #[test]
    fn containers_by_their_cgroup() {
        let id = "0123456789abcdef".repeat(4);
        for path in [
            format!("0::/system.slice/docker-{id}.scope\n"),
            format!("12:memory:/kubepods/pod1/{id}\n0::/\n"),
            format!("0::/kubepods.slice/cri-containerd-{id}.scope/init\n"),
            format!("0::/kubepods.slice/kubepods-pod1.slice/crio-{id}.scope\n"),
            format!("0::/machine.slice/libpod-{id}.scope/container\n"),
            format!("4:pids:/docker/{id}\n"),
            format!("0::/system.slice/containerd.service/kubepods-besteffort-pod1.slice:cri-containerd:{id}\n"),
        ] {
            assert_eq!(super::id(&path, "", b"").as_deref(), Some(id.as_str()), "{path}");
        }
        assert_eq!(super::id("0::/user.slice/user-1000.slice/session-2.scope\n", "", b""), None);
    }

    #[test]
    fn containers_without_a_cgroup_of_their_own() {
        let slurm = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n";
        let root = "120 1 259:2 /var/lib/enroot/data/user-1000/pyxis_77.0 / rw,relatime - ext4 /dev/nvme0n1p2 rw\n";
        assert_eq!(super::id(slurm, root, b"A=1\0").as_deref(), Some("pyxis_77.0"));
        let host = "22 1 259:2 / / rw,relatime - ext4 /dev/nvme0n1p2 rw\n23 22 0:5 /enroot /mnt rw - tmpfs t rw\n";
        assert_eq!(super::id(slurm, host, b"A=1\0"), None);
        let environ = b"RANK=1\0APPTAINER_CONTAINER=/images/pytorch-2.6.sif\0X=\0";
        assert_eq!(super::id(slurm, host, environ).as_deref(), Some("pytorch-2.6.sif"));
        assert_eq!(super::id(slurm, host, b"SINGULARITY_CONTAINER=a.sif").as_deref(), Some("a.sif"));
    }

    #[test]
    fn pods_by_their_uid() {
        let with_systemd = format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-{}.scope\n",
            UID.replace('-', "_"),
            "a".repeat(64)
        );
        assert_eq!(pod_uid(&with_systemd).as_deref(), Some(UID));
        assert_eq!(pod_uid(&format!("5:cpu:/kubepods/besteffort/pod{UID}/{}\n", "b".repeat(64))).as_deref(), Some(UID));
        let guaranteed = format!("0::/kubepods.slice/kubepods-pod{}.slice/x\n", UID.replace('-', "_"));
        assert_eq!(pod_uid(&guaranteed).as_deref(), Some(UID));
        assert_eq!(pod_uid("0::/machine.slice/podman-3.scope\n"), None);
        assert_eq!(pod_uid("0::/kubepods.slice/pods\n"), None);
    }

    proptest! {
        #[test]
        fn any_text_reads_without_harm(text in ".{0,200}", environ in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (super::id(&text, &text, &environ), pod_uid(&text));
        }
    }
}
