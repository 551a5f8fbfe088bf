// A certified authorization server (npm oidc-provider) on plain HTTP, for a test that puts TLS
// before it: node oidc-provider.mjs REDIRECT_URI. It prints its address and ends with its input.
import Provider from 'oidc-provider';

const provider = new Provider('https://login.certified.example', {
  clients: [{
    client_id: 'client-oidc', client_secret: 'secret_SENTINEL_oidc+/=%', redirect_uris: [process.argv[2]],
    grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'client_secret_post',
  }],
  scopes: ['openid', 'offline_access', 'tickets.read', 'tickets.write'],
  cookies: { keys: ['k'] }, pkce: { required: () => true },
  features: { devInteractions: { enabled: true }, revocation: { enabled: true } },
});
provider.proxy = true;
const server = provider.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
process.stdin.resume().once('end', () => process.exit());
