//! Which communication library a file is, by its name.

use record::Library;

/// Which library a file of this name is.
pub(crate) fn library_of(file_name: &[u8]) -> Option<Library> {
    const NAMES: &[(&[u8], Library)] = &[
        (b"libnccl.so", Library::Nccl),
        (b"libtorch_cuda.so", Library::Nccl), // some builds carry NCCL inside
        (b"librccl.so", Library::Rccl),
        (b"libtorch_hip.so", Library::Rccl),
        (b"libgloo.so", Library::Gloo),
        (b"libtorch_cpu.so", Library::Gloo), // PyTorch's wheels carry it inside
        (b"libmpi.so", Library::Mpi),
        (b"libmpich.so", Library::Mpi),
        (b"libmpi_cray.so", Library::Mpi),
        (b"libmpi_gnu", Library::Mpi),
        (b"libmpi_intel", Library::Mpi),
    ];
    NAMES.iter().find(|(prefix, _)| file_name.starts_with(prefix)).map(|(_, library)| *library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_by_name() {
        assert_eq!(library_of(b"libnccl.so.2.21.5"), Some(Library::Nccl));
        assert_eq!(library_of(b"librccl.so"), Some(Library::Rccl));
        assert_eq!(library_of(b"libmpi.so.40"), Some(Library::Mpi));
        assert_eq!(library_of(b"libtorch_cpu.so.1.13"), Some(Library::Gloo));
        assert_eq!(library_of(b"libnccl-net.so"), None);
        assert_eq!(library_of(b"libmpi_mpifh.so.40"), None);
    }
}
