// All pages of a list.
import {Octokit} from '@octokit/rest';

const client = new Octokit({auth: 'ghp_made_up', baseUrl: process.env.GITHUB_API_URL});
console.log(JSON.stringify(await client.paginate('GET /user/repos', {per_page: 1})));
