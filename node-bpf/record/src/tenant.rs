//! Whose a process is: one name for a job, a pod, a container, a unit or a user.

use crate::{ProcessSeen, printable};

/// In place of a tenant: the kernel's own threads.
pub const KERNEL: &str = "kernel";
/// So much of a container's id, as its engine shows it.
const CONTAINER_DIGITS: usize = 12;

impl ProcessSeen {
    /// Whose it is, by the narrowest name that there is: `job:ID`, `pod:UID`, `container:ID` (12 digits),
    /// `unit:NAME`, `user:NAME`.
    #[must_use]
    pub fn tenant(&self) -> String {
        let named = |kind: &str, name: &str| format!("{kind}:{}", printable(name));
        if let Some(job) = &self.job_id {
            return named("job", job);
        }
        if let Some(pod) = &self.pod {
            return named("pod", pod);
        }
        if let Some(container) = &self.container_id {
            return named("container", &container.chars().take(CONTAINER_DIGITS).collect::<String>());
        }
        match self.unit() {
            Some(unit) => named("unit", unit),
            None => named("user", &self.user),
        }
    }

    /// The innermost service of systemd that it is in.
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        self.cgroup_path.rsplit('/').find(|part| part.ends_with(".service"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_the_narrowest_name() {
        let mut process = ProcessSeen { user: "ada".into(), ..ProcessSeen::default() };
        assert_eq!(process.tenant(), "user:ada");
        process.cgroup_path = "/system.slice/vllm.service".into();
        assert_eq!(process.tenant(), "unit:vllm.service");
        process.cgroup_path = "/user.slice/user-1000.slice/session-3.scope".into();
        assert_eq!(process.tenant(), "user:ada");
        process.container_id = Some("0123456789abcdef".into());
        assert_eq!(process.tenant(), "container:0123456789ab");
        process.pod = Some("6f9c".into());
        assert_eq!(process.tenant(), "pod:6f9c");
        process.job_id = Some("4\u{1b}2".into());
        assert_eq!(process.tenant(), format!("job:{}", printable("4\u{1b}2")), "nothing steers a terminal");
    }
}
