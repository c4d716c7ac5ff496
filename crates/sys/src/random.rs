//! Bytes from the kernel's generator.

use std::io;

use rustix::rand::GetRandomFlags;

/// Fills `bytes` with random ones, fit for keys.
///
/// # Errors
/// When the kernel has no generator to offer.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::rand::getrandom(&mut *rest, GetRandomFlags::empty()) {
            Ok(count) => rest = rest.split_at_mut(count).1,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_draws_differ() {
        let (mut first, mut second) = ([0; 64], [0; 64]);
        fill(&mut first).unwrap();
        fill(&mut second).unwrap();
        assert_ne!(first, second);
    }
}
