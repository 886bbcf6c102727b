//! `rankmesh check`: what this host can capture and what to do about the rest; or a store's integrity.

use std::io::Write;
use std::path::Path;

use serde_json::json;

use super::{CheckArgs, Exit, ReportFormat};
use crate::output::render;
use crate::store;

pub(super) fn run(args: CheckArgs) -> anyhow::Result<Exit> {
    match &args.db {
        Some(file) => store_file(file, args.format),
        None => host(args.format),
    }
}

fn host(format: ReportFormat) -> anyhow::Result<Exit> {
    let kernel = nix::sys::utsname::uname()?;
    let kernel = format!("{} {}", kernel.release().display(), kernel.machine().display());
    let btf = Path::new("/sys/kernel/btf/vmlinux").exists();
    let capture = node_bpf::supported();
    let rows = [
        ("kernel", true, kernel),
        (
            "BTF",
            btf,
            if btf {
                "present".into()
            } else {
                "absent: /sys/kernel/btf/vmlinux is missing (CONFIG_DEBUG_INFO_BTF)".to_owned()
            },
        ),
        (
            "eBPF capture",
            capture.is_ok(),
            match &capture {
                Ok(()) => "possible".to_owned(),
                Err(error) => error.to_string(),
            },
        ),
    ];
    let mut out = std::io::stdout().lock();
    match format {
        ReportFormat::Json => {
            let list: Vec<_> =
                rows.iter().map(|(what, ok, detail)| json!({"what": what, "ok": ok, "detail": detail})).collect();
            writeln!(out, "{}", json!(list))?;
        }
        ReportFormat::Table => {
            let lines = rows.iter().map(|(what, ok, detail)| {
                vec![(*what).to_owned(), if *ok { "ok" } else { "no" }.to_owned(), detail.clone()]
            });
            writeln!(out, "{}", render(&["what", "", "detail"], lines, &[]))?;
        }
    }
    Ok(if capture.is_ok() { Exit::Complete } else { Exit::Failed })
}

fn store_file(file: &Path, format: ReportFormat) -> anyhow::Result<Exit> {
    let problems = store::integrity(file)?;
    let mut out = std::io::stdout().lock();
    match format {
        ReportFormat::Json => {
            writeln!(out, "{}", json!({"file": file, "ok": problems.is_empty(), "problems": problems}))?
        }
        ReportFormat::Table if problems.is_empty() => writeln!(out, "{}: intact", file.display())?,
        ReportFormat::Table => {
            for problem in &problems {
                writeln!(out, "{}: {problem}", file.display())?;
            }
        }
    }
    Ok(if problems.is_empty() { Exit::Complete } else { Exit::Failed })
}
