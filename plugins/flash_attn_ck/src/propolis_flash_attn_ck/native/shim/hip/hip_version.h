// The release whose ways Composable Kernel is to take: none of the newer ones, which need its headers.
#pragma once

#define HIP_VERSION_MAJOR 5
#define HIP_VERSION_MINOR 2
#define HIP_VERSION_PATCH 0
#define HIP_VERSION 50200000
