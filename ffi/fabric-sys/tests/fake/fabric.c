/* A libfabric with one provider, whose endpoints name themselves only. It has all that the providers
 * of most machines lack: contexts that it writes, receives that a write with a number takes, regions
 * that belong to endpoints, a NIC, and objects that refuse to be closed while others need them. A
 * domain of the name "stuck" never closes its regions and endpoints. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ENTRIES_MAX 64
#define REGIONS_MAX 16
#define OPT_SHARED_MEMORY 11
#define OPT_MAX_RMA_SIZE 14

struct region;

struct domain {
	struct fid_domain base;
	struct fabric *fabric;
	bool is_stuck;
	/* Calls under way: never two, because the threading is FI_THREAD_DOMAIN. */
	int calls;
	int users;
	struct region *regions[REGIONS_MAX];
};

struct fabric {
	struct fid_fabric base;
	int users;
};

struct queue {
	struct fid_cq base;
	struct domain *domain;
	struct fi_cq_data_entry entries[ENTRIES_MAX];
	size_t count;
	void *failed;
	int users;
};

struct addresses {
	struct fid_av base;
	struct domain *domain;
	bool is_there[256];
	int users;
};

struct endpoint {
	struct fid_ep base;
	struct domain *domain;
	struct queue *queue;
	struct addresses *addresses;
	void *receives[ENTRIES_MAX];
	size_t receives_count;
	bool is_shared_memory_off;
	bool is_enabled;
	int users;
};

struct region {
	struct fid_mr base;
	struct domain *domain;
	struct endpoint *endpoint;
	struct iovec piece;
	uint64_t access;
};

/* Begins a call; false if another one is under way. */
static bool begin(struct domain *domain)
{
	bool is_alone = __atomic_fetch_add(&domain->calls, 1, __ATOMIC_ACQ_REL) == 0;

	/* So that another thread has its chance to be wrong. */
	sched_yield();
	return is_alone;
}

static ssize_t end(struct domain *domain, ssize_t result)
{
	__atomic_fetch_sub(&domain->calls, 1, __ATOMIC_ACQ_REL);
	return result;
}

/* Info */

static struct fi_info *new_info(void)
{
	struct fi_info *info = calloc(1, sizeof(*info));
	info->tx_attr = calloc(1, sizeof(*info->tx_attr));
	info->rx_attr = calloc(1, sizeof(*info->rx_attr));
	info->ep_attr = calloc(1, sizeof(*info->ep_attr));
	info->domain_attr = calloc(1, sizeof(*info->domain_attr));
	info->fabric_attr = calloc(1, sizeof(*info->fabric_attr));
	return info;
}

uint32_t fi_version(void) { return FI_VERSION(1, 22); }

const char *fi_strerror(int code) { return code == FI_EKEYREJECTED ? "no such key" : strerror(code); }

struct fi_info *fi_dupinfo(const struct fi_info *info) { return info ? NULL : new_info(); }

void fi_freeinfo(struct fi_info *info)
{
	free(info->domain_attr->name);
	free(info->fabric_attr->name);
	free(info->fabric_attr->prov_name);
	free(info->tx_attr);
	free(info->rx_attr);
	free(info->ep_attr);
	free(info->domain_attr);
	free(info->fabric_attr);
	free(info->src_addr);
	free(info);
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
	       const struct fi_info *hints, struct fi_info **found)
{
	static struct fi_device_attr device = {.name = "fake0"};
	static struct fi_bus_attr bus = {.bus_type = FI_BUS_PCI, .attr.pci = {0, 0x9a, 0, 1}};
	static struct fi_link_attr link = {.speed = 400000000000};
	static struct fid_nic nic = {.device_attr = &device, .bus_attr = &bus, .link_attr = &link};
	struct fi_info *info = new_info();
	const char *name = hints->domain_attr->name;

	(void)node, (void)service, (void)flags;
	if (version != FI_VERSION(1, 22) || hints->ep_attr->type != FI_EP_RDM)
		return -FI_EINVAL;
	info->caps = hints->caps;
	info->tx_attr->inject_size = 32;
	info->tx_attr->size = info->rx_attr->size = ENTRIES_MAX;
	info->tx_attr->iov_limit = 2;
	info->tx_attr->rma_iov_limit = 1;
	info->tx_attr->mode = FI_CONTEXT2;
	info->rx_attr->mode = FI_RX_CQ_DATA;
	info->ep_attr->type = FI_EP_RDM;
	info->ep_attr->protocol = 77;
	info->ep_attr->max_msg_size = 4096;
	info->domain_attr->name = strdup(name ? name : "fake0");
	info->domain_attr->threading = FI_THREAD_DOMAIN;
	info->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	info->domain_attr->control_progress = FI_PROGRESS_AUTO;
	info->domain_attr->mr_mode =
		FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	info->domain_attr->mr_key_size = 4;
	info->domain_attr->mr_iov_limit = 1;
	info->domain_attr->cq_data_size = 4;
	info->fabric_attr->name = strdup("fake");
	info->fabric_attr->prov_name = strdup("fake");
	info->src_addrlen = 3;
	info->src_addr = strdup("me");
	info->nic = &nic;
	*found = info;
	return 0;
}

/* Regions */

static int close_region(struct fid *fid)
{
	struct region *region = (struct region *)fid;

	if (region->domain->is_stuck)
		return -FI_EBUSY;
	for (int i = 0; i < REGIONS_MAX; i++)
		if (region->domain->regions[i] == region)
			region->domain->regions[i] = NULL;
	if (region->endpoint)
		region->endpoint->users--;
	region->domain->users--;
	free(region);
	return 0;
}

static int bind_region(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct region *region = (struct region *)fid;

	(void)flags;
	region->endpoint = (struct endpoint *)other;
	region->endpoint->users++;
	return 0;
}

static int control_region(struct fid *fid, int command, void *arg)
{
	struct region *region = (struct region *)fid;

	(void)arg;
	if (command != FI_ENABLE || !region->endpoint || !region->endpoint->is_enabled)
		return -FI_EINVAL;
	for (int i = 0; i < REGIONS_MAX; i++)
		if (!region->domain->regions[i]) {
			region->domain->regions[i] = region;
			region->base.key = 100 + i;
			return 0;
		}
	return -FI_ENOSPC;
}

static int register_region(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags,
			   struct fid_mr **mr)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_region, .bind = bind_region,
				    .control = control_region};
	struct region *region = calloc(1, sizeof(*region));

	if (flags || attr->iov_count != 1 || attr->requested_key)
		return -FI_EINVAL;
	region->domain = (struct domain *)fid;
	region->domain->users++;
	region->piece = attr->mr_iov[0];
	region->access = attr->access;
	region->base.fid.ops = &ops;
	region->base.key = FI_KEY_NOTAVAIL;
	region->base.mem_desc = region;
	*mr = &region->base;
	return 0;
}

/* Queues */

static int close_queue(struct fid *fid)
{
	struct queue *queue = (struct queue *)fid;

	if (queue->users)
		return -FI_EBUSY;
	queue->domain->users--;
	free(queue);
	return 0;
}

static ssize_t do_read_queue(struct queue *queue, void *buffer, size_t count)
{
	if (queue->count == 0)
		return queue->failed ? -FI_EAVAIL : -FI_EAGAIN;
	if (count > queue->count)
		count = queue->count;
	memcpy(buffer, queue->entries, count * sizeof(*queue->entries));
	queue->count -= count;
	memmove(queue->entries, queue->entries + count, queue->count * sizeof(*queue->entries));
	return count;
}

static ssize_t read_queue(struct fid_cq *cq, void *buffer, size_t count)
{
	struct queue *queue = (struct queue *)cq;
	bool is_alone = begin(queue->domain);

	return end(queue->domain, is_alone ? do_read_queue(queue, buffer, count) : -FI_EBUSY);
}

static ssize_t read_error(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	struct queue *queue = (struct queue *)cq;

	(void)flags;
	if (!queue->failed)
		return -FI_EAGAIN;
	entry->op_context = queue->failed;
	entry->err = FI_EKEYREJECTED;
	entry->prov_errno = 42;
	if (entry->err_data_size < 8)
		return -FI_ETOOSMALL;
	memcpy(entry->err_data, "details", 8);
	entry->err_data_size = 8;
	queue->failed = NULL;
	return 1;
}

static const char *error_text(struct fid_cq *cq, int code, const void *data, char *buffer, size_t bytes)
{
	(void)cq, (void)buffer, (void)bytes;
	return code == 42 && data && !strcmp(data, "details") ? "the key is wrong" : "?";
}

static int open_queue(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_queue};
	static struct fi_ops_cq cq_ops = {.size = sizeof(cq_ops), .read = read_queue,
					  .readerr = read_error, .strerror = error_text};
	struct queue *queue = calloc(1, sizeof(*queue));

	(void)context;
	if (attr->format != FI_CQ_FORMAT_DATA || attr->size > ENTRIES_MAX)
		return -FI_EINVAL;
	queue->domain = (struct domain *)domain;
	queue->domain->users++;
	queue->base.fid.ops = &ops;
	queue->base.ops = &cq_ops;
	*cq = &queue->base;
	return 0;
}

/* Addresses */

static int close_addresses(struct fid *fid)
{
	struct addresses *addresses = (struct addresses *)fid;

	if (addresses->users)
		return -FI_EBUSY;
	addresses->domain->users--;
	free(addresses);
	return 0;
}

/* Only the first byte matters, so two names may be one endpoint's. */
static int insert(struct fid_av *av, const void *name, size_t count, fi_addr_t *number, uint64_t flags,
		  void *context)
{
	struct addresses *addresses = (struct addresses *)av;

	(void)count, (void)flags, (void)context;
	*number = *(const unsigned char *)name;
	if (*number == '!')
		return 0;
	addresses->is_there[*number] = true;
	return 1;
}

static int take_out(struct fid_av *av, fi_addr_t *number, size_t count, uint64_t flags)
{
	struct addresses *addresses = (struct addresses *)av;

	(void)count, (void)flags;
	if (!addresses->is_there[*number])
		return -FI_EINVAL;
	addresses->is_there[*number] = false;
	return 0;
}

static int open_addresses(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_addresses};
	static struct fi_ops_av av_ops = {.size = sizeof(av_ops), .insert = insert, .remove = take_out};
	struct addresses *addresses = calloc(1, sizeof(*addresses));

	(void)attr, (void)context;
	addresses->domain = (struct domain *)domain;
	addresses->domain->users++;
	addresses->base.fid.ops = &ops;
	addresses->base.ops = &av_ops;
	*av = &addresses->base;
	return 0;
}

/* Endpoints */

static int close_endpoint(struct fid *fid)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	if (endpoint->users || endpoint->domain->is_stuck)
		return -FI_EBUSY;
	if (endpoint->queue)
		endpoint->queue->users--;
	if (endpoint->addresses)
		endpoint->addresses->users--;
	endpoint->domain->users--;
	free(endpoint);
	return 0;
}

static int bind_endpoint(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	if (flags == 0) {
		endpoint->addresses = (struct addresses *)other;
		endpoint->addresses->users++;
		return 0;
	}
	if (flags != (FI_SEND | FI_RECV))
		return -FI_EINVAL;
	endpoint->queue = (struct queue *)other;
	endpoint->queue->users++;
	return 0;
}

static int control_endpoint(struct fid *fid, int command, void *arg)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	(void)arg;
	if (command != FI_ENABLE || !endpoint->queue || !endpoint->addresses || !endpoint->is_shared_memory_off)
		return -FI_EOPBADSTATE;
	endpoint->is_enabled = true;
	return 0;
}

static int set_option(fid_t fid, int level, int name, const void *value, size_t bytes)
{
	struct endpoint *endpoint = (struct endpoint *)fid;

	if (level != FI_OPT_ENDPOINT || name != OPT_SHARED_MEMORY)
		return -FI_ENOPROTOOPT;
	if (bytes != sizeof(bool))
		return -FI_EINVAL;
	endpoint->is_shared_memory_off = !*(const bool *)value;
	return 0;
}

static int get_option(fid_t fid, int level, int name, void *value, size_t *bytes)
{
	(void)fid;
	if (level != FI_OPT_ENDPOINT || name != OPT_MAX_RMA_SIZE)
		return -FI_ENOPROTOOPT;
	if (*bytes < sizeof(size_t))
		return -FI_ETOOSMALL;
	*(size_t *)value = 2048;
	*bytes = sizeof(size_t);
	return 0;
}

static int get_name(fid_t fid, void *name, size_t *bytes)
{
	(void)fid;
	memcpy(name, "me", 3);
	*bytes = 3;
	return 0;
}

static void complete(struct queue *queue, void *context, uint64_t flags, uint64_t data)
{
	queue->entries[queue->count++] = (struct fi_cq_data_entry){context, flags, 0, NULL, data};
}

/* The other side of an access; NULL if no region allows it. */
static void *reach(struct endpoint *endpoint, uint64_t address, size_t bytes, uint64_t key, uint64_t access)
{
	if (key < 100 || key >= 100 + REGIONS_MAX || !endpoint->domain->regions[key - 100])
		return NULL;
	struct region *region = endpoint->domain->regions[key - 100];
	uint64_t start = (uint64_t)region->piece.iov_base;
	bool is_inside = address >= start && address + bytes <= start + region->piece.iov_len;
	return is_inside && (region->access & access) ? (void *)address : NULL;
}

static ssize_t do_write(struct endpoint *endpoint, const void *from, size_t bytes, void *desc, uint64_t data,
			bool has_data, fi_addr_t peer, uint64_t address, uint64_t key, void *context)
{
	struct region *region = desc;
	void *to = reach(endpoint, address, bytes, key, FI_REMOTE_WRITE);

	if (!(region->access & FI_WRITE) || !endpoint->addresses->is_there[peer])
		return -FI_EINVAL;
	if (endpoint->queue->count + 2 > ENTRIES_MAX || (has_data && !endpoint->receives_count))
		return -FI_EAGAIN;
	memset(context, 0xab, sizeof(struct fi_context2));
	if (!to) {
		endpoint->queue->failed = context;
		return 0;
	}
	memcpy(to, from, bytes);
	complete(endpoint->queue, context, FI_RMA | FI_WRITE, 0);
	if (has_data) {
		void *receive = endpoint->receives[0];
		memmove(endpoint->receives, endpoint->receives + 1, --endpoint->receives_count * sizeof(void *));
		complete(endpoint->queue, receive, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA, data);
	}
	return 0;
}

static ssize_t any_write(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
			 bool has_data, fi_addr_t peer, uint64_t address, uint64_t key, void *context)
{
	struct endpoint *endpoint = (struct endpoint *)ep;

	if (!begin(endpoint->domain))
		return end(endpoint->domain, -FI_EBUSY);
	return end(endpoint->domain,
		   do_write(endpoint, from, bytes, desc, data, has_data, peer, address, key, context));
}

static ssize_t post_write(struct fid_ep *ep, const void *from, size_t bytes, void *desc, fi_addr_t peer,
			  uint64_t address, uint64_t key, void *context)
{
	return any_write(ep, from, bytes, desc, 0, false, peer, address, key, context);
}

static ssize_t post_write_data(struct fid_ep *ep, const void *from, size_t bytes, void *desc, uint64_t data,
			       fi_addr_t peer, uint64_t address, uint64_t key, void *context)
{
	return any_write(ep, from, bytes, desc, data, true, peer, address, key, context);
}

static ssize_t post_write_message(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
	const struct iovec *local = message->msg_iov;
	const struct fi_rma_iov *remote = message->rma_iov;

	if (message->iov_count != 1 || message->rma_iov_count != 1 || remote->len != local->iov_len)
		return -FI_EINVAL;
	if (!(flags & FI_MORE) || !(flags & FI_COMPLETION))
		return -FI_EINVAL;
	return any_write(ep, local->iov_base, local->iov_len, message->desc[0], message->data,
			 flags & FI_REMOTE_CQ_DATA, message->addr, remote->addr, remote->key, message->context);
}

static ssize_t post_receive(struct fid_ep *ep, void *buffer, size_t bytes, void *desc, fi_addr_t peer,
			    void *context)
{
	struct endpoint *endpoint = (struct endpoint *)ep;

	(void)buffer, (void)desc;
	if (bytes || peer != FI_ADDR_UNSPEC)
		return -FI_EINVAL;
	if (endpoint->receives_count == ENTRIES_MAX)
		return -FI_EAGAIN;
	memset(context, 0xcd, sizeof(struct fi_context2));
	endpoint->receives[endpoint->receives_count++] = context;
	return 0;
}

static int open_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_endpoint, .bind = bind_endpoint,
				    .control = control_endpoint};
	static struct fi_ops_ep ep_ops = {.size = sizeof(ep_ops), .getopt = get_option, .setopt = set_option};
	static struct fi_ops_cm cm = {.size = sizeof(cm), .getname = get_name};
	static struct fi_ops_msg msg = {.size = sizeof(msg), .recv = post_receive};
	static struct fi_ops_rma rma = {.size = sizeof(rma), .write = post_write, .writedata = post_write_data,
					.writemsg = post_write_message};
	struct endpoint *endpoint = calloc(1, sizeof(*endpoint));

	(void)info, (void)context;
	endpoint->domain = (struct domain *)domain;
	endpoint->domain->users++;
	endpoint->base.fid.ops = &ops;
	endpoint->base.ops = &ep_ops;
	endpoint->base.cm = &cm;
	endpoint->base.msg = &msg;
	endpoint->base.rma = &rma;
	*ep = &endpoint->base;
	return 0;
}

/* Domains and fabrics */

static int close_domain(struct fid *fid)
{
	struct domain *domain = (struct domain *)fid;

	if (domain->users)
		return -FI_EBUSY;
	domain->fabric->users--;
	free(domain);
	return 0;
}

static int open_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **found, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_domain};
	static struct fi_ops_domain domain_ops = {.size = sizeof(domain_ops), .av_open = open_addresses,
						  .cq_open = open_queue, .endpoint = open_endpoint};
	static struct fi_ops_mr mr = {.size = sizeof(mr), .regattr = register_region};
	struct domain *domain = calloc(1, sizeof(*domain));

	(void)context;
	domain->fabric = (struct fabric *)fabric;
	domain->fabric->users++;
	domain->is_stuck = !strcmp(info->domain_attr->name, "stuck");
	domain->base.fid.ops = &ops;
	domain->base.ops = &domain_ops;
	domain->base.mr = &mr;
	*found = &domain->base;
	return 0;
}

static int close_fabric(struct fid *fid)
{
	struct fabric *fabric = (struct fabric *)fid;

	if (fabric->users)
		return -FI_EBUSY;
	free(fabric);
	return 0;
}

int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **found, void *context)
{
	static struct fi_ops ops = {.size = sizeof(ops), .close = close_fabric};
	static struct fi_ops_fabric fabric_ops = {.size = sizeof(fabric_ops), .domain = open_domain};
	struct fabric *fabric = calloc(1, sizeof(*fabric));

	(void)attr, (void)context;
	fabric->base.fid.ops = &ops;
	fabric->base.ops = &fabric_ops;
	*found = &fabric->base;
	return 0;
}
