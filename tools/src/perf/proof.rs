//! The proof with which a connection of `perf` begins: both sides know the secret
//! (LINERATE_SECRET). Without one they still prove that they are sides of `perf`.

use linerate::unstable::bootstrap;
use linerate::unstable::wire::{
    Claim, HANDSHAKE_BYTES, HandshakeMessage, Initiator, JobKey, NONCE_BYTES, Purpose, Responder,
};
use std::io::{Read, Write};

/// What every key of `perf` is derived for.
const USE: &[u8] = b"linerate perf";

/// The key that both sides derive from their secret.
pub fn key(secret: Option<&[u8]>) -> JobKey {
    JobKey::derive(secret.unwrap_or_default(), USE)
}

/// The client's side.
pub fn prove(stream: &mut (impl Read + Write), key: &JobKey) -> Result<(), String> {
    let claim = Claim {
        purpose: Purpose::Control,
        initiator: 1,
        responder: 0,
        epoch: 0,
        detail: 0,
    };
    let (mut initiator, hello) = Initiator::new(key, &claim, &nonce()?);
    write(stream, &hello)?;
    let proof = initiator
        .handle_challenge(&read(stream)?)
        .map_err(|error| error.to_string())?;
    write(stream, &proof)?;
    let verdict = read(stream)?;
    initiator
        .handle_verdict(&verdict)
        .map(drop)
        .map_err(|error| error.to_string())
}

/// The server's side.
pub fn demand(stream: &mut (impl Read + Write), key: &JobKey) -> Result<(), String> {
    let hello = read(stream)?;
    Claim::parse(&hello).map_err(|error| error.to_string())?;
    let (responder, challenge) = Responder::new(key, &hello, &nonce()?);
    write(stream, &challenge)?;
    responder
        .handle_proof(&read(stream)?)
        .map_err(|error| error.to_string())?;
    write(stream, &responder.verdict(None, 0))
}

fn nonce() -> Result<[u8; NONCE_BYTES], String> {
    let mut nonce = [0; NONCE_BYTES];
    for word in nonce.chunks_exact_mut(8) {
        let random = bootstrap::nonce().map_err(|error| error.to_string())?;
        word.copy_from_slice(&random.to_ne_bytes());
    }
    Ok(nonce)
}

fn read(stream: &mut impl Read) -> Result<HandshakeMessage, String> {
    let mut message = [0; HANDSHAKE_BYTES];
    let read = stream.read_exact(&mut message);
    read.map_err(|cause| format!("it has not proven who it is: {cause}"))?;
    Ok(message)
}

fn write(stream: &mut impl Write, message: &HandshakeMessage) -> Result<(), String> {
    let written = stream.write_all(message);
    written.map_err(|cause| format!("proving who this is: {cause}"))
}
