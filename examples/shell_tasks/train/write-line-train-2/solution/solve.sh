#!/bin/bash
cd /workspace || exit 1
echo warm boat > agenda.txt
