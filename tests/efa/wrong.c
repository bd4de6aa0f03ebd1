/* Breaks one rule, which its argument names, by calls that fabric-sys never makes. */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 65536

static struct fid_cq *queue;
static struct fid_av *addresses;
static struct fid_ep *endpoint;
static struct fid_domain *domain;
static struct fid_mr *region;
static fi_addr_t self;
static char memory[BYTES], unregistered[BYTES];

static void check(int status, const char *what)
{
	if (status >= 0)
		return;
	fprintf(stderr, "%s: %d\n", what, status);
	exit(1);
}

static void open_all(void)
{
	struct fi_info *hints = fi_dupinfo(NULL), *info;
	struct fid_fabric *fabric;
	struct fi_cq_attr cq = {.size = 64, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av = {.type = FI_AV_TABLE};
	struct iovec piece = {memory, BYTES};
	struct fi_mr_attr mr = {.mr_iov = &piece,
				.iov_count = 1,
				.access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE};
	char name[64];
	size_t bytes = sizeof(name);

	hints->fabric_attr->name = strdup("efa-direct");
	hints->ep_attr->type = FI_EP_RDM;
	hints->mode = FI_CONTEXT2 | FI_RX_CQ_DATA;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	check(fi_getinfo(FI_VERSION(1, 22), NULL, NULL, 0, hints, &info), "getinfo");
	check(fi_fabric(info->fabric_attr, &fabric, NULL), "fabric");
	check(fi_domain(fabric, info, &domain, NULL), "domain");
	check(fi_cq_open(domain, &cq, &queue, NULL), "cq");
	check(fi_av_open(domain, &av, &addresses, NULL), "av");
	check(fi_endpoint(domain, info, &endpoint, NULL), "endpoint");
	check(fi_ep_bind(endpoint, &addresses->fid, 0), "bind");
	check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "bind");
	check(fi_enable(endpoint), "enable");
	check(fi_mr_regattr(domain, &mr, 0, &region), "regattr");
	check(fi_getname(&endpoint->fid, name, &bytes), "getname");
	check(fi_av_insert(addresses, name, 1, &self, 0, NULL), "insert");
}

static void write_bytes(void *from, size_t bytes, void *desc, fi_addr_t peer, void *context)
{
	ssize_t status;

	do
		status = fi_write(endpoint, from, bytes, desc, peer, (uint64_t)memory, region->key, context);
	while (status == -FI_EAGAIN);
	check(status, "write");
}

/* A write that lasts for ever, because it has a number and no receive is there to take it. */
static void write_for_ever(void *desc, void *context)
{
	ssize_t status;

	do
		status = fi_writedata(endpoint, memory, 8, desc, 1, self, (uint64_t)memory, region->key, context);
	while (status == -FI_EAGAIN);
	check(status, "writedata");
}

int main(int count, char **arguments)
{
	static struct fi_context2 one, other;
	const char *rule = count > 1 ? arguments[1] : "";
	void *desc;

	open_all();
	desc = fi_mr_desc(region);
	if (!strcmp(rule, "no descriptor"))
		write_bytes(memory, 8, NULL, self, &one);
	if (!strcmp(rule, "unregistered"))
		write_bytes(unregistered, 8, desc, self, &one);
	if (!strcmp(rule, "behind the end"))
		write_bytes(memory + BYTES - 4, 8, desc, self, &one);
	if (!strcmp(rule, "too long"))
		write_bytes(memory, BYTES, desc, self, &one);
	if (!strcmp(rule, "no peer"))
		write_bytes(memory, 8, desc, self + 1, &one);
	if (!strcmp(rule, "context twice")) {
		write_for_ever(desc, &one);
		write_bytes(memory, 8, desc, self, &one);
	}
	if (!strcmp(rule, "context changed")) {
		write_for_ever(desc, &one);
		memset(&one, 0, sizeof(one));
		while (fi_recv(endpoint, NULL, 0, NULL, FI_ADDR_UNSPEC, &other) == -FI_EAGAIN)
			;
	}
	if (!strcmp(rule, "region in use")) {
		write_for_ever(desc, &one);
		fi_close(&region->fid);
	}
	if (!strcmp(rule, "peer in use")) {
		write_for_ever(desc, &one);
		fi_av_remove(addresses, &self, 1, 0);
	}
	if (!strcmp(rule, "queue in use"))
		fi_close(&queue->fid);
	if (!strcmp(rule, "domain in use"))
		fi_close(&domain->fid);
	if (!strcmp(rule, "cancel"))
		fi_cancel(&endpoint->fid, &one);
	if (!strcmp(rule, "none"))
		write_bytes(memory, 8, desc, self, &one);
	/* Until the device has done it. */
	sleep(strcmp(rule, "none") ? 20 : 0);
	return 0;
}
