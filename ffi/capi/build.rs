//! How the shared library is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The number is the major version of the ABI (`LINERATE_ABI_MAJOR`).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liblinerate_c.so.0");
    // Threads of the library may run when a program calls dlclose: its code stays.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
