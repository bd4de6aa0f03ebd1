//! What the two ends of a connection present and accept: raw public keys (RFC 7250), made from the
//! secrets that the challenge has given both of them. There is no authority, nothing is stored, and
//! nothing expires.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, ClientConfig, Resumption};
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group, sign};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    SupportedCipherSuite,
};
use std::sync::Arc;
use std::time::Duration;

/// What the two ends of one connection derive from the job's key: a seed of each one's signing key.
#[derive(Clone, PartialEq, Eq)]
pub struct ChannelSecrets {
    pub(in crate::wire) initiator: [u8; 32],
    pub(in crate::wire) responder: [u8; 32],
}

impl std::fmt::Debug for ChannelSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ChannelSecrets(..)")
    }
}

/// The cipher suites that are offered, best first: AES where CPUs have instructions for it, which
/// is nearly everywhere.
pub(super) const SUITES: [SupportedCipherSuite; 2] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// PKCS #8 of an Ed25519 key (RFC 8410), up to its 32 bytes.
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
];

/// The configuration of the side that has connected.
pub(super) fn initiator(
    secrets: &ChannelSecrets,
    suites: &[SupportedCipherSuite],
) -> Result<ClientConfig, Error> {
    let own = key_of(&secrets.initiator)?;
    let provider = provider(suites);
    let theirs = Arc::new(OnlyThisKey::new(&*key_of(&secrets.responder)?, &provider));
    let mut config = ClientConfig::builder_with_details(provider, Arc::new(NoTime))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(theirs)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// The configuration of the side that was connected to.
pub(super) fn responder(
    secrets: &ChannelSecrets,
    suites: &[SupportedCipherSuite],
) -> Result<ServerConfig, Error> {
    let own = key_of(&secrets.responder)?;
    let provider = provider(suites);
    let theirs = Arc::new(OnlyThisKey::new(&*key_of(&secrets.initiator)?, &provider));
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(NoTime))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(theirs)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(own)));
    // A new connection begins anew, with new keys.
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn provider(suites: &[SupportedCipherSuite]) -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites.to_vec(),
        kx_groups: vec![kx_group::X25519],
        ..default_provider()
    })
}

fn key_of(seed: &[u8; 32]) -> Result<Arc<CertifiedKey>, Error> {
    let der = [&PKCS8_ED25519[..], seed].concat();
    let key = sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der))?;
    let public = key.public_key().expect("Ed25519 keys have a public half");
    let public = CertificateDer::from(public.as_ref().to_vec());
    Ok(Arc::new(CertifiedKey::new(vec![public], key)))
}

/// Keys do not expire, and this layer has no clock.
#[derive(Debug)]
struct NoTime;

impl TimeProvider for NoTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

/// Accepts one key and no other.
#[derive(Debug)]
struct OnlyThisKey {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OnlyThisKey {
    fn new(key: &CertifiedKey, provider: &CryptoProvider) -> OnlyThisKey {
        OnlyThisKey {
            public: key.cert[0].clone(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match *shown == self.public {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }
}

/// What rustls asks of a verifier, whichever side it is on.
macro_rules! only_raw_ed25519_keys {
    () => {
        /// Never asked for: only TLS 1.3 is spoken.
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("a signature of TLS 1.2".into()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            shown: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
            verify_tls13_signature_with_raw_key(message, &public, signature, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for OnlyThisKey {
    only_raw_ed25519_keys!();

    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }
}

impl ClientCertVerifier for OnlyThisKey {
    only_raw_ed25519_keys!();

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }
}
