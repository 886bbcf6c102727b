//! What a server is called.

use record::ProcessSeen;

use super::find::Found;

/// A detected service: its unit's name, else its program's with the port.
pub(super) fn service_name(found: &Found, process: &ProcessSeen) -> String {
    if let Some(name) = &found.name {
        return name.clone();
    }
    if let Some(unit) = process.unit().and_then(|unit| unit.strip_suffix(".service")) {
        return record::printable(unit);
    }
    let exe = process.exe.strip_suffix(" (deleted)").unwrap_or(&process.exe);
    let program = record::printable(exe.rsplit('/').next().unwrap_or(exe));
    found.listens.ports.first().map_or(program.clone(), |port| format!("{program}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::super::wire;
    use super::*;

    #[test]
    fn services_have_names_that_are_the_same_on_all_hosts() {
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
        assert_eq!(service_name(&found(None), &process), "python3.11:8000");
        process.cgroup_path = "/system.slice/vllm.service".into();
        assert_eq!(service_name(&found(None), &process), "vllm");
    }
}
