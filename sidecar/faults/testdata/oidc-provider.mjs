// A certified authorization server (npm oidc-provider) on plain HTTP, for a test that puts TLS before
// it. Refresh tokens are for one use, and a used one ends all that came of it. It prints its address
// and ends with its input. GET /seen says how often each path was asked.
import Provider from 'oidc-provider';

const provider = new Provider('https://login.certified.example', {
  clients: [{
    client_id: 'client-oidc', client_secret: 'secret_SENTINEL_oidc+/=%', redirect_uris: ['https://broker.test/oauth/oidc/callback'],
    grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'client_secret_post',
  }],
  scopes: ['openid', 'offline_access', 'tickets.read', 'tickets.write'],
  cookies: { keys: ['k'] }, pkce: { required: () => true },
  rotateRefreshToken: true, issueRefreshToken: async () => true,
  features: { devInteractions: { enabled: true }, revocation: { enabled: true } },
  ttl: { AccessToken: 60, RefreshToken: 3600, Grant: 3600, Session: 3600, Interaction: 600, AuthorizationCode: 60 },
});
provider.proxy = true;

/** @type {Record<string, number>} */
const seen = {};
provider.use(async (ctx, next) => {
  if (ctx.path === '/seen') {
    ctx.body = seen;
    return;
  }
  await next();
  const key = `${ctx.path} ${ctx.status}`;
  seen[key] = (seen[key] ?? 0) + 1;
});
const server = provider.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}`));
process.stdin.resume().once('end', () => process.exit());
