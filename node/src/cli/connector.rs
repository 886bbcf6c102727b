//! What commands ask besides the local agent: other agents over the mesh, stores and archives, and
//! the meshes of Slurm jobs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ask::{Backend, Connector, Exit, RanOnNode};

use super::stores::Stores;
use super::via::Via;
use crate::slurm::ask::{Reach, is_known, reach};

/// Opens them in this process.
pub(super) struct LocalConnector;

impl Connector for LocalConnector {
    fn via(&self, host: &str, identity: &Path) -> Arc<dyn Backend> {
        Arc::new(Via::new(host, identity))
    }

    fn stores(&self, paths: &[PathBuf]) -> anyhow::Result<Arc<dyn Backend>> {
        Ok(Arc::new(Stores::open(paths)?))
    }

    #[cfg(feature = "archive")]
    fn archive(
        &self,
        paths: &[PathBuf],
        archive: &str,
        live: Option<(Arc<dyn Backend>, Duration)>,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        use super::archive::{asked, mesh_rows::Hosts};
        let hosts = live.map(|(mesh, timeout)| Hosts::ask(&ask::Target::of(mesh), timeout)).transpose()?;
        Ok(Arc::new(asked::open(paths, archive, hosts)?))
    }

    #[cfg(not(feature = "archive"))]
    fn archive(
        &self,
        _: &[PathBuf],
        _: &str,
        _: Option<(Arc<dyn Backend>, Duration)>,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        Err(super::without_archives())
    }

    fn slurm_job(&self, job: &str) -> anyhow::Result<PathBuf> {
        let exit = match reach(job)? {
            Reach::Socket(path) => return Ok(path),
            Reach::HandedOn(0) => Exit::Complete,
            Reach::HandedOn(2) => Exit::Usage,
            Reach::HandedOn(3) => Exit::Partial,
            Reach::HandedOn(_) => Exit::Failed,
        };
        Err(RanOnNode(exit).into())
    }

    fn has_own_mesh(&self, job: &str) -> bool {
        is_known(job)
    }
}
