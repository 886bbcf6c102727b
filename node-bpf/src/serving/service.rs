//! What a server is called, and whose it is.

use record::ProcessSeen;

use super::find::Found;

/// A detected service: its unit's name, else its program's with the port.
pub(super) fn service_name(found: &Found, process: &ProcessSeen) -> String {
    if let Some(name) = &found.name {
        return name.clone();
    }
    if let Some(unit) = unit_of(&process.cgroup_path).and_then(|unit| unit.strip_suffix(".service")) {
        return record::printable(unit);
    }
    let exe = process.exe.strip_suffix(" (deleted)").unwrap_or(&process.exe);
    let program = record::printable(exe.rsplit('/').next().unwrap_or(exe));
    found.listens.ports.first().map_or(program.clone(), |port| format!("{program}:{port}"))
}

/// Whose server it is, by the narrowest name that there is.
pub(super) fn tenant_of(process: &ProcessSeen) -> String {
    let named = |kind: &str, name: &str| format!("{kind}:{}", record::printable(name));
    if let Some(job) = &process.job_id {
        return named("job", job);
    }
    if let Some(pod) = &process.pod {
        return named("pod", pod);
    }
    if let Some(container) = &process.container_id {
        return named("container", &container.chars().take(12).collect::<String>());
    }
    match unit_of(&process.cgroup_path) {
        Some(unit) => named("unit", unit),
        None => named("user", &process.user),
    }
}

/// The innermost service of systemd in a cgroup's path.
fn unit_of(path: &str) -> Option<&str> {
    path.rsplit('/').find(|part| part.ends_with(".service"))
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;

    #[test]
    fn services_and_tenants_have_names_that_are_the_same_on_all_hosts() {
        let found = |name: Option<&str>| Found {
            pid: 7,
            name: name.map(str::to_owned),
            called: vec![],
            ports: vec![],
            listens: wire::Listens { ports: vec![8000], ..wire::Listens::default() },
        };
        let mut process =
            ProcessSeen { exe: "/usr/bin/python3.11".into(), user: "ada".into(), ..ProcessSeen::default() };
        assert_eq!(service_name(&found(Some("chat")), &process), "chat");
        assert_eq!(
            (service_name(&found(None), &process), tenant_of(&process)),
            ("python3.11:8000".into(), "user:ada".into())
        );
        process.cgroup_path = "/system.slice/vllm.service".into();
        assert_eq!(
            (service_name(&found(None), &process), tenant_of(&process)),
            ("vllm".into(), "unit:vllm.service".into())
        );
        process.container_id = Some("0123456789abcdef".into());
        assert_eq!(tenant_of(&process), "container:0123456789ab");
        process.job_id = Some("42".into());
        assert_eq!(tenant_of(&process), "job:42");
    }
}
