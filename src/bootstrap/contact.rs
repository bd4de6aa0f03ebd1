//! Contacts as bytes.

use crate::engine::Contact;
use crate::error::{Error, Result};
use crate::memory::RegionKey;
use crate::transport::Address;

const KEYS_BYTES: usize = 8;

/// The keys, then the address.
pub fn emit_contact(contact: &Contact) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(KEYS_BYTES + contact.address.0.len());
    bytes.extend(contact.control_key.0.to_le_bytes());
    bytes.extend(contact.window_key.0.to_le_bytes());
    bytes.extend(&contact.address.0);
    bytes
}

/// Checks and parses.
pub fn parse_contact(bytes: &[u8]) -> Result<Contact> {
    let Some((keys, address)) = bytes.split_at_checked(KEYS_BYTES) else {
        return Err(Error::Malformed(format!(
            "a contact of {} bytes, at least {KEYS_BYTES} are needed",
            bytes.len()
        )));
    };
    let key = |at: usize| RegionKey(u32::from_le_bytes(std::array::from_fn(|i| keys[at + i])));
    Ok(Contact {
        address: Address(address.to_vec()),
        control_key: key(0),
        window_key: key(4),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_survives_and_a_stump_is_refused() {
        let contact = Contact {
            address: Address(b"name".to_vec()),
            control_key: RegionKey(1),
            window_key: RegionKey(u32::MAX),
        };
        let bytes = emit_contact(&contact);
        assert_eq!(parse_contact(&bytes).unwrap(), contact);
        assert!(parse_contact(&bytes[..7]).is_err());
        assert!(parse_contact(&bytes[..8]).unwrap().address.0.is_empty());
    }
}
